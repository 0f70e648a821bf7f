-- Removes an empty stream and its group.
--
-- KEYS[1]  stream
-- KEYS[2]  newest id when the group was made anew, if it ever was
-- returns  1 when the stream is gone, 0 when something is in it
--
-- Acknowledging deletes, so the length counts all that is unfinished, read or
-- not.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XLEN', KEYS[1]) > 0 then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
