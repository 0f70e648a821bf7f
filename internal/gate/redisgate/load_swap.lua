-- Creates the new gate, and moves the old line to it.
--
-- ARGV[1]   template id
-- ARGV[2]   channel of hints
-- ARGV[3]   token of the loader
-- ARGV[4]   run of the server when the marker was set
-- ARGV[5]   number of holdings that the loader has stored
-- ARGV[6]   only tickets above this are kept, except in KAFKA mode
-- ARGV[7]   generation
-- ARGV[8]   version
-- ARGV[9]   settled
-- ARGV[10]  total
-- ARGV[11]  live
-- ARGV[12]  issued_total
-- ARGV[13]  limit
-- ARGV[14]  opens, '' = at once
-- ARGV[15]  closes, '' = never
-- ARGV[16]  mode
-- returns   {1 if it was done else 0, number of requests kept}
--
-- The swap is refused unless the loader still holds the marker, the run is the
-- same, all holdings are stored, and no gate of this generation or a later one
-- exists. No other script creates a gate.
--
-- Users at their limit by the new holdings are left out: their request would be
-- rejected. Tickets continue from settled. In STREAM mode a line has no gaps, so
-- users keep their tickets, unless a user was left out or coupons were issued
-- through the database.
if run() ~= ARGV[4] or redis.call('GET', MARKER) ~= ARGV[3] then
  return {0, 0}
end
local h = redis.call('HMGET', TEMPLATE, 'generation', 'service')
local facts = redis.call('HLEN', NEW_HOLDERS)
if (h[1] and tonumber(h[1]) >= tonumber(ARGV[7])) or facts ~= tonumber(ARGV[5]) then
  return {0, 0}
end
redis.call('HLEN', LEFT_OUT) -- these fail if a key has a wrong type
local stood = redis.call('ZCARD', LINE)
local kafka, limit = ARGV[16] == 'KAFKA', tonumber(ARGV[13])

redis.call('UNLINK', REQUESTS, HOLDERS, OLD_LINE)
redis.call('HDEL', TEMPLATE, 'cap', 'cap_until')
if stood > 0 then
  redis.call('RENAME', LINE, OLD_LINE)
end
if facts > 0 then
  redis.call('RENAME', NEW_HOLDERS, HOLDERS)
end
redis.call('XGROUP', 'CREATE', REQUESTS, GROUP, '0', 'MKSTREAM')
local last = tonumber(ARGV[9])
for from = 0, stood - 1, CHUNK do
  local old, users, members, moved = redis.call('ZRANGE', OLD_LINE, from, from + CHUNK - 1, 'WITHSCORES'), {}, {}, {}
  for i = 1, #old, 2 do
    if kafka or tonumber(old[i + 1]) > tonumber(ARGV[6]) then
      members[#members + 1] = {old[i], tonumber(old[i + 1])}
      users[#users + 1] = string.sub(old[i], #ARGV[1] + 2)
    end
  end
  local gone = kafka and redis.call('HMGET', LEFT_OUT, unpack(users)) or {}
  local has = #users > 0 and redis.call('HMGET', HOLDERS, unpack(users)) or {}
  for i, member in ipairs(members) do
    local held = has[i] and string.match(has[i], '^%d+')
    local full = held and tonumber(held) >= limit
    if not full and (not gone[i] or tonumber(gone[i]) ~= member[2]) then
      last = last + 1
      moved[#moved + 1] = last
      moved[#moved + 1] = member[1]
      request(ARGV[1], member[1], users[i], text(last), ARGV[7])
    end
  end
  if #moved > 0 then
    redis.call('ZADD', LINE, unpack(moved))
  end
end
redis.call('UNLINK', OLD_LINE, LEFT_OUT, MARKER)

local waiting = last - tonumber(ARGV[9])
redis.call('HSET', TEMPLATE, 'run', ARGV[4], 'generation', ARGV[7], 'version', ARGV[8],
  'settled', ARGV[9], 'next', text(last), 'total', ARGV[10], 'live', ARGV[11], 'issued_total', ARGV[12],
  'limit', ARGV[13], 'opens', ARGV[14], 'closes', ARGV[15], 'mode', ARGV[16],
  'last_ask', text(micros()), 'service', h[2] or '0')
redis.call('MSET', STOCK, text(math.max(tonumber(ARGV[10]) - tonumber(ARGV[11]) - waiting, 0)),
  COUNT, ARGV[11], ISSUED, ARGV[12])
if waiting > 0 then
  publish(ARGV[2], 'asked', ARGV[1])
end
publish(ARGV[2], 'applied', ARGV[1])
return {1, waiting}
