-- Makes entries pending with a consumer, for a new lease, that were delivered
-- and are pending with no consumer. XGROUP DELCONSUMER and XGROUP SETID leave
-- such entries when somebody runs them by hand: nobody reads or claims them.
--
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  minimum age of an entry in milliseconds
-- ARGV[4]  where an earlier call stopped, '-' for the oldest entry
-- ARGV[5]  maximum entries to look at
-- returns  {number of entries adopted, where to continue ('' for the oldest entry)}
--
-- The last consumer may still have a call in flight: the lease gives the call
-- time to end. After that, the entry is claimed like any other.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {0, ''}
end
local delivered = last_delivered(KEYS[1], ARGV[1])
if not delivered then
  return {0, ''}
end

local now = redis.call('TIME')
local old = now[1] * 1000 + math.floor(now[2] / 1000) - tonumber(ARGV[3])
local to = delivered
if old < tonumber(string.match(delivered, '%d+')) then
  if old < 0 then
    return {0, ''}
  end
  to = string.format('%.0f', old)
end
local page = redis.call('XRANGE', KEYS[1], ARGV[4], to, 'COUNT', ARGV[5])
if #page == 0 then
  return {0, ''}
end
local held = {}
for _, entry in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], page[1][1], page[#page][1], ARGV[5])) do
  held[entry[1]] = true
end
local orphans = {}
for _, entry in ipairs(page) do
  local id = entry[1]
  -- The reply above may be cut short by pending entries that are no longer in
  -- the stream, and FORCE would take an entry from a consumer that has it.
  if not held[id] and #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1) == 0 then
    orphans[#orphans + 1] = id
  end
end
local next = ''
if #page == tonumber(ARGV[5]) then
  next = '(' .. page[#page][1]
end
local count = #orphans
if count == 0 then
  return {0, next}
end
orphans[count + 1] = 'IDLE'
orphans[count + 2] = 0
orphans[count + 3] = 'FORCE'
orphans[count + 4] = 'JUSTID'
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(orphans))
return {count, next}
