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
local h = redis.call('HMGET', TEMPLATE, 'run', 'mode')
if redis.call('XLEN', REQUESTS) == 0 or h[1] == CLOSED and h[2] == 'KAFKA' then
  return 0
end
local acked = 0
for from = 4, #ARGV, CHUNK do
  local ids = {}
  for i = from, math.min(from + CHUNK - 1, #ARGV) do
    ids[#ids + 1] = ARGV[i] .. '-' .. ARGV[3]
  end
  redis.call('XACK', REQUESTS, GROUP, unpack(ids))
  acked = acked + redis.call('XDEL', REQUESTS, unpack(ids))
end
if acked > 0 and h[2] == 'KAFKA' then
  publish(ARGV[2], 'applied', ARGV[1])
end
return acked
