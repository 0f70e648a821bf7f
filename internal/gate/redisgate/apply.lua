-- Brings the gate to a version of the rows.
--
-- ARGV[1]   template id
-- ARGV[2]   channel of hints
-- ARGV[3]   lowest version that the gate must have
-- ARGV[4]   1 = write state and holdings even if the gate is at the version already
-- ARGV[5]   service time in microseconds, 0 = none
-- ARGV[6]   version
-- ARGV[7]   settled
-- ARGV[8]   total
-- ARGV[9]   live
-- ARGV[10]  issued_total
-- ARGV[11]  limit
-- ARGV[12]  opens, '' = at once
-- ARGV[13]  closes, '' = never
-- ARGV[14]  mode
-- ARGV[15]  base
-- ARGV[16]  granted
-- ARGV[17]  used
-- ARGV[18]  grants
-- ARGV[19]  number of users without a holding
-- ARGV[20]  number of users with a holding
-- ARGV[21]  number of tickets that leave the line
-- ARGV[22]  number of requests whose users have left
-- ARGV[23]  number of requests whose users are put back in line
-- ARGV[24…] the users without a holding; users and holdings as in KEYS[4]; users
--           and tickets; requests of both kinds: user, ticket, generation; outcomes:
--           user, ticket, coupon id, reason
-- returns   {1 if the gate is behind and nothing was done else 0, its version},
--           or NOTLOADED, also if the gate is of the base or an earlier generation
--
-- The script checks everything before the first write. A full server decides at
-- the first write of a script whether it allows the others. So the first write
-- always happens and only removes, which a full server allows.
local h = redis.call('HMGET', TEMPLATE, 'run', 'version', 'service', 'next', 'generation', 'grants', 'mode')
if not h[1] or h[1] ~= run() or tonumber(h[5]) <= tonumber(ARGV[15]) then
  return NOT_LOADED
end
local version, target = tonumber(h[2]), tonumber(ARGV[6])
if target < version or (target == version and ARGV[4] ~= '1') then
  return {0, version}
end
if version < tonumber(ARGV[3]) then
  return {1, version}
end
redis.call('ZCARD', LINE) -- these fail if a key has a wrong type
redis.call('HLEN', HOLDERS)
redis.call('XLEN', REQUESTS)
redis.call('XLEN', OUTCOMES)

local dropped, set, done = tonumber(ARGV[19]), tonumber(ARGV[20]), tonumber(ARGV[21])
local kafka = ARGV[14] == 'KAFKA'
redis.call('ZREMRANGEBYSCORE', LINE, '-inf', kafka and 0 or ARGV[7]) -- no ticket is 0
local first = 24 + dropped + 2 * set
for from = first, kafka and first + 2 * done - 1 or 0, 2 * CHUNK do
  local members, left = {}, {}
  local last = math.min(from + 2 * CHUNK, first + 2 * done) - 1
  for i = from, last, 2 do
    members[#members + 1] = ARGV[1] .. ':' .. ARGV[i]
  end
  for i, ticket in ipairs(redis.call('ZMSCORE', LINE, unpack(members))) do
    if ticket and tonumber(ticket) == tonumber(ARGV[from + 2 * i - 1]) then
      left[#left + 1] = members[i]
    end
  end
  if #left > 0 then
    redis.call('ZREM', LINE, unpack(left))
  end
end
local back = first + 2 * done + 3 * tonumber(ARGV[22])
leave(ARGV[1], first + 2 * done, back - 1, h[5], h[7])
local outcomes = back + 3 * tonumber(ARGV[23])
if not kafka then
  come_back(ARGV[1], back, outcomes - 1, tonumber(ARGV[7]))
end
for from = 24, 23 + dropped, CHUNK do
  redis.call('HDEL', HOLDERS, unpack(ARGV, from, math.min(from + CHUNK - 1, 23 + dropped)))
end
for from = 24 + dropped, first - 1, 2 * CHUNK do
  redis.call('HSET', HOLDERS, unpack(ARGV, from, math.min(from + 2 * CHUNK, first) - 1))
end

local waiting = redis.call('ZCARD', LINE)
local service, measured = tonumber(h[3]), tonumber(ARGV[5])
if measured > 0 then
  service = measured
end
redis.call('HSET', TEMPLATE, 'version', ARGV[6], 'settled', ARGV[7],
  'next', text(math.max(tonumber(h[4]), tonumber(ARGV[7]))), 'total', ARGV[8], 'live', ARGV[9],
  'issued_total', ARGV[10], 'limit', ARGV[11], 'opens', ARGV[12], 'closes', ARGV[13],
  'mode', ARGV[14], 'used', ARGV[17], 'service', text(service))
if tonumber(ARGV[18]) > tonumber(h[6]) then -- otherwise the gate may have shrunk since
  redis.call('HSET', TEMPLATE, 'granted', ARGV[16], 'grants', ARGV[18])
end
redis.call('MSET', STOCK, text(math.max(tonumber(ARGV[8]) - tonumber(ARGV[9]) - waiting, 0)),
  COUNT, ARGV[9], ISSUED, ARGV[10])

if target > version then
  for i = outcomes, #ARGV, 4 do
    local user, coupon = ARGV[i], ARGV[i + 2]
    redis.call('XADD', OUTCOMES, '*',
      'requestId', ARGV[1] .. ':' .. user, 'templateId', ARGV[1], 'userId', user, 'ticket', ARGV[i + 1],
      'status', coupon == '0' and 'FAILED' or 'SUCCESS', 'couponId', coupon, 'reason', ARGV[i + 3])
  end
  redis.call('XTRIM', OUTCOMES, 'MAXLEN', '~', 100000, 'LIMIT', 0)
end
publish(ARGV[2], 'applied', ARGV[1])
return {0, target}
