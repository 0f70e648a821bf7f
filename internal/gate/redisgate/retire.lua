-- Removes a gate that nobody needs.
--
-- ARGV[1]  for how many microseconds nobody may have asked
-- returns  1 when there is none now, 0 when it stays
--
-- Loaded or not makes no difference: whoever asks next has it loaded. What a
-- loader lays beside is his as long as his marker stands.
local asked = redis.call('HGET', TEMPLATE, 'last_ask')
if not asked then
  return 1
end
if redis.call('ZCARD', LINE) > 0 or redis.call('XLEN', REQUESTS) > 0 or micros() - tonumber(asked) < tonumber(ARGV[1]) then
  return 0
end
redis.call('UNLINK', TEMPLATE, LINE, REQUESTS, HOLDERS, STOCK, COUNT, ISSUED, OUTCOMES)
if redis.call('EXISTS', MARKER) == 0 then
  redis.call('UNLINK', BESIDE, GONE)
end
return 1
