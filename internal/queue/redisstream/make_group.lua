-- Creates the group from the beginning of the stream, and consumers in it, if
-- they are missing. Does nothing if the stream is missing: only add_entries
-- creates a stream.
--
-- KEYS[1]  stream
-- KEYS[2]  set to the newest ID if the group is created and the stream has entries
-- ARGV[1]  group
-- ARGV[2…] consumers
-- returns  1 if the group was created, 0 if it existed, -1 if the stream is missing
--
-- Largesse creates the group with the first entry. A stream with entries and
-- without a group has lost the group, or belongs to another system. The record
-- of deliveries is lost too, so these entries must not count as new.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return -1
end
local made = 1
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  if group[2] == ARGV[1] then
    made = 0
  end
end
if made == 1 then
  local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  if newest then
    redis.call('SET', KEYS[2], newest[1])
  end
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0')
end
for i = 2, #ARGV do
  redis.call('XGROUP', 'CREATECONSUMER', KEYS[1], ARGV[1], ARGV[i])
end
return made
