-- Makes the gate. Takes the old line over as it stands in this moment.
--
-- ARGV[1]   template id
-- ARGV[2]   channel of hints
-- ARGV[3]   token of the loader
-- ARGV[4]   run of the server that his marker was set in
-- ARGV[5]   how many facts there are beside
-- ARGV[6]   only tickets above this are taken over, but in KAFKA mode
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
-- returns   {1 if it was done else 0, how many were taken over}
--
-- Refused unless marker and run are still the loader's, his facts complete and
-- no gate of this generation or a newer one stands. It is the only script that
-- makes a gate. Whoever has all that he may have by the facts is left out: his
-- request would only be refused. People are numbered on from settled, so in
-- STREAM, where a line has no holes, everybody keeps his number, unless somebody
-- was left out or coupons were issued past the gate.
if run() ~= ARGV[4] or redis.call('GET', MARKER) ~= ARGV[3] then
  return {0, 0}
end
local h = redis.call('HMGET', TEMPLATE, 'generation', 'service')
local facts = redis.call('HLEN', BESIDE)
if (h[1] and tonumber(h[1]) >= tonumber(ARGV[7])) or facts ~= tonumber(ARGV[5]) then
  return {0, 0}
end
redis.call('HLEN', GONE) -- these fail on a key of a wrong type
local stood = redis.call('ZCARD', LINE)
local kafka, limit = ARGV[16] == 'KAFKA', tonumber(ARGV[13])

redis.call('UNLINK', REQUESTS, HOLDERS, TAKEN)
redis.call('HDEL', TEMPLATE, 'cap', 'cap_until')
if stood > 0 then
  redis.call('RENAME', LINE, TAKEN)
end
if facts > 0 then
  redis.call('RENAME', BESIDE, HOLDERS)
end
redis.call('XGROUP', 'CREATE', REQUESTS, GROUP, '0', 'MKSTREAM')
local last = tonumber(ARGV[9])
for from = 0, stood - 1, CHUNK do
  local old, users, members, moved = redis.call('ZRANGE', TAKEN, from, from + CHUNK - 1, 'WITHSCORES'), {}, {}, {}
  for i = 1, #old, 2 do
    if kafka or tonumber(old[i + 1]) > tonumber(ARGV[6]) then
      members[#members + 1] = {old[i], tonumber(old[i + 1])}
      users[#users + 1] = string.sub(old[i], #ARGV[1] + 2)
    end
  end
  local gone = kafka and redis.call('HMGET', GONE, unpack(users)) or {}
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
redis.call('UNLINK', TAKEN, GONE, MARKER)

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
