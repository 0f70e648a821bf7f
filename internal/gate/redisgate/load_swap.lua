-- Creates the new gate, or reopens the existing one.
--
-- ARGV[1]   token of the loader
-- ARGV[2]   run of the server when the load began
-- ARGV[3]   not used
-- ARGV[4]   template id
-- ARGV[5]   channel of hints
-- ARGV[6]   KEEP, REMAKE or FRESH, see gate.LoadKind
-- ARGV[7]   generation of the existing gate when the load began, 0 = none
-- ARGV[8]   number of holdings that the loader has stored
-- ARGV[9]   number of users that the loader has copied
-- ARGV[10]  generation
-- ARGV[11]  version
-- ARGV[12]  settled
-- ARGV[13]  total
-- ARGV[14]  live
-- ARGV[15]  issued_total
-- ARGV[16]  limit
-- ARGV[17]  opens, '' = at once
-- ARGV[18]  closes, '' = never
-- ARGV[19]  mode
-- ARGV[20]  base; only apply.lua uses it
-- ARGV[21]  granted
-- ARGV[22]  used
-- ARGV[23]  grants
-- returns   {1 if it was done else 0, number of users in line}
--
-- gate.SwapResult lists when the swap is refused. No other script creates a gate.
-- Nothing here depends on the length of the line: keys are renamed, and UNLINK frees
-- memory in the background.
if lost(ARGV[1], ARGV[2]) then
  return {0, 0}
end
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'service', 'next')
local old, settled, copied = tonumber(h[2] or 0), tonumber(ARGV[12]), tonumber(ARGV[9])
local facts, keep = redis.call('HLEN', NEW_HOLDERS), ARGV[6] == 'KEEP'
if h[1] and h[1] ~= CLOSED or old ~= tonumber(ARGV[7]) or old >= tonumber(ARGV[10]) or facts ~= tonumber(ARGV[8])
  or redis.call('ZCARD', NEW_LINE) ~= copied or redis.call('XLEN', NEW_REQUESTS) ~= copied then
  return {0, 0}
end
if keep and (redis.call('ZCOUNT', LINE, '-inf', ARGV[12]) > 0 or not grouped()) then
  return {0, 0}
end

redis.call('UNLINK', HOLDERS)
if facts > 0 then
  redis.call('RENAME', NEW_HOLDERS, HOLDERS)
end
local last = settled + copied
if keep then
  last = math.max(tonumber(h[4]), settled)
else
  redis.call('UNLINK', LINE, REQUESTS)
  if copied > 0 then
    redis.call('RENAME', NEW_LINE, LINE)
    redis.call('RENAME', NEW_REQUESTS, REQUESTS) -- its group comes along
  else
    redis.call('XGROUP', 'CREATE', REQUESTS, GROUP, '0', 'MKSTREAM')
  end
end
redis.call('UNLINK', NEW_REQUESTS, NEW_LINE, MARKER)

local waiting = redis.call('ZCARD', LINE)
redis.call('HSET', TEMPLATE, 'run', ARGV[2], 'generation', ARGV[10], 'version', ARGV[11],
  'settled', ARGV[12], 'next', text(last), 'total', ARGV[13], 'live', ARGV[14], 'issued_total', ARGV[15],
  'limit', ARGV[16], 'opens', ARGV[17], 'closes', ARGV[18], 'mode', ARGV[19],
  'granted', ARGV[21], 'used', ARGV[22], 'grants', ARGV[23],
  'last_ask', text(micros()), 'service', h[3] or '0')
redis.call('MSET', STOCK, text(math.max(tonumber(ARGV[13]) - tonumber(ARGV[14]) - waiting, 0)),
  COUNT, ARGV[14], ISSUED, ARGV[15])
if waiting > 0 then
  publish(ARGV[5], 'asked', ARGV[4])
end
publish(ARGV[5], 'applied', ARGV[4])
return {1, waiting}
