-- Removes an empty stream and its group.
--
-- KEYS[1]  stream
-- KEYS[2]  newest ID when the group was created again, if it ever was
-- returns  2 if the stream was removed, 1 if it did not exist, 0 if it has entries
--
-- An acknowledgement deletes the entry, so the length counts every unfinished
-- entry, delivered or not.
local exists = redis.call('EXISTS', KEYS[1])
if exists == 1 and redis.call('XLEN', KEYS[1]) > 0 then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
return 1 + exists
