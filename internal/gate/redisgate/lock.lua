-- Takes the SYNC lock.
--
-- KEYS[1]  lock: fencing token of the holder
-- KEYS[2]  latest fencing token and, after a space, the nonce of its holder
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  nonce of the caller
-- ARGV[3]  highest token that the rows know
-- returns  {1, token as text}, or {0, ''} if another caller holds the lock
--
-- A holder that repeats the call, because the reply was lost, gets the same token. A
-- new token is above all earlier ones: above the latest that this server knows, above
-- the latest that the rows know, and at least the time in microseconds. So neither
-- lost data nor a clock that was set back makes a token too low.
local latest, nonce = string.match(redis.call('GET', KEYS[2]) or '0', '^(%d+) ?(.*)$')
local held = redis.call('GET', KEYS[1])
if held then
  if held ~= latest or nonce ~= ARGV[2] then
    return {0, ''}
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return {1, held}
end
local time = redis.call('TIME')
local token = math.max(tonumber(latest) + 1, tonumber(ARGV[3]) + 1, time[1] * 1000000 + time[2])
local text = string.format('%.0f', token)
redis.call('SET', KEYS[2], text .. ' ' .. ARGV[2], 'EX', 86400) -- the rows know an older token
redis.call('SET', KEYS[1], text, 'PX', ARGV[1])
return {1, text}
