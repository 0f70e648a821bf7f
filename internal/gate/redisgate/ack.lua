-- Acknowledges and deletes requests.
--
-- ARGV[1]  template id
-- ARGV[2]  channel of hints
-- ARGV[3]  generation
-- ARGV[4…] tickets
-- returns  how many requests there were
--
-- A request may be acknowledged even if the gate must not be served any more, so
-- the script does not compare the run. In KAFKA mode a caller waits until the
-- request has left the stream, hence the hint. There, nothing is acknowledged while
-- a load has closed the gate: the load gives the requests new tickets, and the old
-- ones may be void.
--
-- XDEL searches each entry from the start of its node, so it costs more than all other
-- commands about a request. Usually the requests are all that were delivered, up to the last
-- of them; then one XTRIM removes the stream up to and including it. In KAFKA mode, which
-- acknowledges in any order, it would also remove an entry that lost its consumer. In the
-- other modes tickets are settled in order, so nothing behind an unsettled entry is
-- acknowledged.
local h = redis.call('HMGET', TEMPLATE, 'run', 'mode')
if redis.call('XLEN', REQUESTS) == 0 or h[1] == CLOSED and h[2] == 'KAFKA' then
  return 0
end
local pending, last = 0, 0
local lists = {}
for from = 4, #ARGV, CHUNK do
  local ids = {}
  for i = from, math.min(from + CHUNK - 1, #ARGV) do
    ids[#ids + 1] = ARGV[i] .. '-' .. ARGV[3]
    last = math.max(last, tonumber(ARGV[i]))
  end
  pending = pending + redis.call('XACK', REQUESTS, GROUP, unpack(ids))
  lists[#lists + 1] = ids
end
if h[2] ~= 'KAFKA' and pending == #ARGV - 3 then
  local oldest = redis.call('XPENDING', REQUESTS, GROUP)[2]
  if not oldest or tonumber(string.match(oldest, '^%d+')) > last then
    return redis.call('XTRIM', REQUESTS, 'MINID', text(last) .. '-' .. text(ARGV[3] + 1))
  end
end
local acked = 0
for _, ids in ipairs(lists) do
  acked = acked + redis.call('XDEL', REQUESTS, unpack(ids))
end
if acked > 0 and h[2] == 'KAFKA' then
  publish(ARGV[2], 'applied', ARGV[1])
end
return acked
