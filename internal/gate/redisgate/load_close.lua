-- Closes the gate for a load: no script serves it until the swap.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  run of the server when the load began
-- ARGV[3]  new expiry of the marker in milliseconds
-- returns  1 if there was a gate to close, 0 if not, or LOADLOST
if lost(ARGV[1], ARGV[2]) then
  return LOAD_LOST
end
local there = redis.call('HEXISTS', TEMPLATE, 'run')
redis.call('PEXPIRE', MARKER, ARGV[3])
if there == 1 then -- a full server allows this write after the one before
  redis.call('HSET', TEMPLATE, 'run', CLOSED)
end
return there
