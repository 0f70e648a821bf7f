-- Removes an empty stream and its group.
--
-- KEYS[1]  stream
-- KEYS[2]  newest ID when the group was created again, if it ever was
-- returns  1 if the stream no longer exists, 0 if it has entries
--
-- An acknowledgement deletes the entry, so the length counts every unfinished
-- entry, delivered or not.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XLEN', KEYS[1]) > 0 then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
