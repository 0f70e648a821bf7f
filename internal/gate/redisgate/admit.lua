-- Decides about users, in order, and admits them while coupons are left to promise.
--
-- ARGV[1]  template id
-- ARGV[2]  1 = admitted users get a ticket, 0 = only check
-- ARGV[3]  channel of hints
-- ARGV[4…] users, at most 256
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
local template, generation, sync = ARGV[1], h[2], h[15] == 'SYNC'
-- Counters, because # searches for the end of a table. %d formats tickets, which are below
-- 2^53, in less than half the time of %.0f.
local answers, given, admitted, taken = #out, {}, {}, 0
for i = 1, asking do
  local user, member = ARGV[3 + i], members[i]
  local held, coupon = false, false
  if facts[i] then
    held, coupon = string.match(facts[i], '^(%d+):(%d+)$')
  end
  local verdict
  if tickets[i] then
    out[answers + 1], out[answers + 2] = 0, tonumber(tickets[i])
    answers, verdict = answers + 2, redis.call('ZRANK', LINE, member)
  elseif given[member] then
    out[answers + 1], out[answers + 2] = 0, next + given[member]
    answers, verdict = answers + 2, waiting + given[member] - 1
  elseif held and tonumber(held) >= limit then
    out[answers + 1] = 1
    answers, verdict = answers + 1, coupon
  elseif shut then
    verdict = shut
  elseif room <= taken then
    verdict = stock > taken and 6 or 4
  elseif not admits then
    verdict = 5
  elseif sync then
    verdict = 7
  else
    taken, verdict = taken + 1, 5
    local ticket = string.format('%d', next + taken)
    request(REQUESTS, template, member, user, ticket, generation)
    admitted[2 * taken - 1], admitted[2 * taken] = ticket, member
    given[member] = taken
  end
  answers = answers + 1
  out[answers] = verdict
end

if taken == 0 then
  if now >= tonumber(h[11]) + 1000000 then
    redis.pcall('HSET', TEMPLATE, 'last_ask', text(now))
  end
  return out
end
redis.call('ZADD', LINE, unpack(admitted))
redis.call('HSET', TEMPLATE, 'next', text(next + taken), 'last_ask', text(now))
redis.call('SET', STOCK, text(stock - taken))
if backlog == 0 then
  publish(ARGV[3], 'asked', template)
end
return out
