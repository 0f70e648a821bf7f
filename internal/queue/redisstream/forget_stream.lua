-- Takes a destroyed stream out of the index of busy streams.
--
-- KEYS[1]  index
-- ARGV[1]  name of the stream
-- returns  1 when it is not in the index any more, 0 when it stays
--
-- An Add notes the stream with its deadline, then adds. While that deadline
-- lies ahead the entries may still come, so the note stays; after it they are
-- refused.
local deadline = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not deadline then
  return 1
end
local now = redis.call('TIME')
if now[1] * 1000 + math.floor(now[2] / 1000) <= tonumber(deadline) then
  return 0
end
return redis.call('ZREM', KEYS[1], ARGV[1])
