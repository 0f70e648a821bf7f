-- Takes the SYNC lock.
--
-- KEYS[1]  lock: fencing token of the holder
-- KEYS[2]  latest fencing token
-- ARGV[1]  lease in milliseconds
-- returns  {1, token as text}, or {0, ''} if the lock is held
--
-- A token is at least the time in microseconds, so that it is above all earlier
-- tokens even if the server has lost them.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {0, ''}
end
local time = redis.call('TIME')
local token = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, time[1] * 1000000 + time[2])
local text = string.format('%.0f', token)
redis.call('SET', KEYS[2], text, 'EX', 86400) -- the time in microseconds is far above the token by then
redis.call('SET', KEYS[1], text, 'PX', ARGV[1])
return {1, text}
