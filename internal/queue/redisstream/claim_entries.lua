-- Gives entries whose lease has expired to a consumer, with a new lease.
--
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  lease in milliseconds
-- ARGV[4]  maximum entries, at most 500
-- ARGV[5]  where an earlier call stopped, '' for the oldest pending entry
-- ARGV[6]  maximum length of a pending list that one call scans in full
-- returns  {where to continue ('' for the oldest pending entry), 1 if the call
--           stopped because it found the maximum, else 0, the entries};
--          {'', 0, {}} if the stream is missing;
--          an error NOGROUP if the stream lacks the group
--
-- Of a longer list, the call scans the pending entries that were added in one
-- fifth of the time between the oldest and the newest. XPENDING with IDLE is
-- several times cheaper than XAUTOCLAIM, which looks up each pending entry in
-- the stream. XCLAIM drops pending entries that are no longer in the stream.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'', 0, {}}
end
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
if pending.err then
  return pending
end
if pending[1] == 0 then
  return {'', 0, {}}
end

local function millis(id)
  return tonumber(string.match(id, '%d+'))
end

local from, to = '-', '+'
if ARGV[5] ~= '' then
  from = ARGV[5]
end
if pending[1] > tonumber(ARGV[6]) then
  local oldest, newest = millis(pending[2]), millis(pending[3])
  local first = oldest
  if ARGV[5] ~= '' then
    first = math.max(oldest, millis(ARGV[5]))
  end
  local last = first + math.floor((newest - oldest) / 5)
  if last < newest then
    to = string.format('%.0f', last)
  end
end

local idle = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], from, to, ARGV[4])
if #idle == 0 then
  if to == '+' then
    return {'', 0, {}}
  end
  return {string.format('%.0f', tonumber(to) + 1), 0, {}}
end
local ids = {}
for i, entry in ipairs(idle) do
  ids[i] = entry[1]
end
local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], unpack(ids))
if #ids == tonumber(ARGV[4]) then
  return {'(' .. ids[#ids], 1, claimed}
end
if to == '+' then
  return {'', 0, claimed}
end
return {string.format('%.0f', tonumber(to) + 1), 0, claimed}
