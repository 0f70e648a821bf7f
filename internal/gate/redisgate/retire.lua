-- Removes an unused gate.
--
-- ARGV[1]  how long the gate must have had no request, in microseconds
-- returns  1 if there is no gate now, 0 if it stays
--
-- The gate need not be loaded: the next request loads it. The data of a load in
-- progress stays while the loader holds the marker.
local asked = redis.call('HGET', TEMPLATE, 'last_ask')
if not asked then
  return 1
end
if redis.call('ZCARD', LINE) > 0 or redis.call('XLEN', REQUESTS) > 0 or micros() - tonumber(asked) < tonumber(ARGV[1]) then
  return 0
end
redis.call('UNLINK', TEMPLATE, LINE, REQUESTS, HOLDERS, STOCK, COUNT, ISSUED, OUTCOMES)
if redis.call('EXISTS', MARKER) == 0 then
  redis.call('UNLINK', NEW_HOLDERS, NEW_REQUESTS, NEW_LINE)
end
return 1
