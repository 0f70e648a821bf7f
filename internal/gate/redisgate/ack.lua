-- Acknowledges and deletes requests.
--
-- ARGV[1]  template id
-- ARGV[2]  channel of hints
-- ARGV[3]  generation
-- ARGV[4…] tickets
-- returns  how many there were; 0 when the gate is of another generation
--
-- Whoever settled or published a request may say so also when the gate is not
-- served any more, so the run is not looked at. In KAFKA mode somebody waits to
-- hear that his request has left the stream.
local h = redis.call('HMGET', TEMPLATE, 'generation', 'mode')
if h[1] ~= ARGV[3] or redis.call('XLEN', REQUESTS) == 0 then
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
