-- Decides about users, in order, and admits them while coupons are left to promise.
--
-- ARGV[1]  template id
-- ARGV[2]  1 = admitted users get a ticket, 0 = only check
-- ARGV[3]  channel of hints
-- ARGV[4…] users, at most 64
-- returns  {generation, version, service time, granted, used, grants, highest ticket
--          before, requests in line before, 1 if grants pause else 0, and per user the
--          verdict as in gate.Verdict, followed for
--          0 (in line) by ticket and rank, for 1 (at the user limit) by the coupon
--          id as text}; admitted users have the next tickets and ranks, in order;
--          or NOTLOADED
--
-- This is the hot path. It reads everything for all users at once, so a refused
-- user costs no call of their own and an admitted user a single XADD. XADD comes
-- first among the writes, because only XADD can fail: on a full server, or if the
-- id is not above the stream's newest. The time of the latest request is stored to
-- the second, and not at all by a full server.
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'version', 'service', 'next',
  'total', 'live', 'limit', 'opens', 'closes', 'last_ask',
  'granted', 'used', 'grants', 'mode', 'paused_until')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
local backlog = redis.call('XLEN', REQUESTS)
if backlog == 0 and redis.call('EXISTS', REQUESTS) == 0 then
  return NOT_LOADED
end
local next, live, waiting = tonumber(h[5]), tonumber(h[7]), redis.call('ZCARD', LINE)
local out = {tonumber(h[2]), tonumber(h[3]), tonumber(h[4]),
  tonumber(h[12]), tonumber(h[13]), tonumber(h[14]), next, waiting, 0}
local asking = #ARGV - 3
if asking == 0 then
  return out
end

local now, limit, admits = micros(), tonumber(h[8]), ARGV[2] == '1'
if h[16] and now < tonumber(h[16]) then
  out[9] = 1
end
local opens, closes = tonumber(h[9]), tonumber(h[10])
local shut = opens and now < opens and 2 or closes and now >= closes and 3
local members = {}
for i = 1, asking do
  members[i] = ARGV[1] .. ':' .. ARGV[3 + i]
end
local tickets = redis.call('ZMSCORE', LINE, unpack(members))
local facts = redis.call('HMGET', HOLDERS, unpack(ARGV, 4))
local stock = tonumber(h[6]) - live - waiting
local places = h[15] == 'SYNC' and stock or tonumber(h[12]) - tonumber(h[13]) - waiting
local room = math.min(stock, places)
local admitted, given = {}, {}
for i = 1, asking do
  local verdict, held, coupon = shut or stock > #admitted / 2 and 6 or 4, false, false
  if facts[i] then
    held, coupon = string.match(facts[i], '^(%d+):(%d+)$')
  end
  if tickets[i] then
    out[#out + 1] = 0
    out[#out + 1] = tonumber(tickets[i])
    verdict = redis.call('ZRANK', LINE, members[i])
  elseif given[members[i]] then
    out[#out + 1] = 0
    out[#out + 1] = next + given[members[i]]
    verdict = waiting + given[members[i]] - 1
  elseif held and tonumber(held) >= limit then
    out[#out + 1] = 1
    verdict = coupon
  elseif not shut and room > #admitted / 2 then
    verdict = admits and h[15] == 'SYNC' and 7 or 5
    if admits and verdict == 5 then
      local ticket = text(next + #admitted / 2 + 1)
      request(REQUESTS, ARGV[1], members[i], ARGV[3 + i], ticket, h[2])
      admitted[#admitted + 1] = ticket
      admitted[#admitted + 1] = members[i]
      given[members[i]] = #admitted / 2
    end
  end
  out[#out + 1] = verdict
end

if #admitted == 0 then
  if now >= tonumber(h[11]) + 1000000 then
    redis.pcall('HSET', TEMPLATE, 'last_ask', text(now))
  end
  return out
end
redis.call('ZADD', LINE, unpack(admitted))
redis.call('HSET', TEMPLATE, 'next', text(next + #admitted / 2), 'last_ask', text(now))
redis.call('SET', STOCK, text(stock - #admitted / 2))
if backlog == 0 then
  publish(ARGV[3], 'asked', ARGV[1])
end
return out
