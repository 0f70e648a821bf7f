-- Makes instances request no places of the rows for a while, or ends that.
--
-- ARGV[1]  duration in microseconds, 0 = ends it
-- returns  1, or NOTLOADED
local loaded = redis.call('HGET', TEMPLATE, 'run')
if not loaded or loaded ~= run() then
  return NOT_LOADED
end
redis.call('HDEL', TEMPLATE, 'paused_until') -- a full server allows this write, and then the next one
if tonumber(ARGV[1]) > 0 then
  redis.call('HSET', TEMPLATE, 'paused_until', text(micros() + tonumber(ARGV[1])))
end
return 1
