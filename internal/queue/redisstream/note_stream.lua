-- Notes in the index that a stream is about to get work.
--
-- KEYS[1]  index
-- ARGV[1]  name of the stream
-- ARGV[2]  deadline of the Add, Unix milliseconds by this server's clock
-- returns  1 when it is noted, 0 when it is too late: nothing will be added
local now = redis.call('TIME')
if now[1] * 1000 + math.floor(now[2] / 1000) > tonumber(ARGV[2]) then
  return 0
end
redis.call('ZADD', KEYS[1], 'GT', ARGV[2], ARGV[1])
return 1
