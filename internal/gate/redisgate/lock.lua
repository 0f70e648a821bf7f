-- Takes the SYNC lock.
--
-- KEYS[1]  lock: token of whoever has it
-- KEYS[2]  the latest token
-- ARGV[1]  lease in milliseconds
-- returns  {1, token as text}, or {0, ''} when somebody has it
--
-- A token is at least the time in microseconds, so that it is above all earlier
-- ones even if the server has lost them.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {0, ''}
end
local time = redis.call('TIME')
local token = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, time[1] * 1000000 + time[2])
local text = string.format('%.0f', token)
redis.call('SET', KEYS[2], text, 'EX', 86400) -- by then the time is far above it
redis.call('SET', KEYS[1], text, 'PX', ARGV[1])
return {1, text}
