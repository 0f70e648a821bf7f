-- Makes the group from the beginning of the stream, and the stream, if they
-- are missing.
--
-- KEYS[1]  stream
-- KEYS[2]  where the newest id is noted when the stream is not empty
-- ARGV[1]  group
-- returns  1 when the group was made, 0 when it was there
--
-- In our own course a group is made before the first entry. A stream with
-- entries and no group has lost it (or is somebody else's), and with it the
-- knowledge of what is in hand already: those entries may not pass as new.
local newest
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    if group[2] == ARGV[1] then
      return 0
    end
  end
  newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
end
if newest then
  redis.call('SET', KEYS[2], newest[1])
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
return 1
