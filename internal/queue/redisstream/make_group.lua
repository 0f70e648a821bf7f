-- Creates the group from the beginning of the stream, and the stream, if they
-- are missing.
--
-- KEYS[1]  stream
-- KEYS[2]  set to the newest ID if the stream has entries
-- ARGV[1]  group
-- returns  1 if the group was created, 0 if it existed
--
-- Largesse creates the group before the first entry. A stream with entries and
-- without a group has lost the group, or belongs to another system. The record
-- of deliveries is lost too, so these entries must not count as new.
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
