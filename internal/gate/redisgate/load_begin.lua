-- Sets the marker of a loader, unless another loader holds it.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  expiry of the marker in milliseconds
-- returns  {1 if the loader holds the marker else 0, run of this server, 1 if the
--          gate has its request stream and group else 0, and 20 numbers, see header
--          in head.lua}
--
-- The data of an earlier load, or of an earlier try of this one, is deleted first,
-- so that a gate on a full server can be loaded, too.
local this_run = run()
local out = header(this_run)
local intact = out[1] == 1 and grouped() and 1 or 0
local stands = redis.call('GET', MARKER)
if stands and stands ~= ARGV[1] then
  return {0, this_run, intact, unpack(out)}
end
redis.call('UNLINK', NEW_HOLDERS, NEW_REQUESTS, NEW_LINE)
redis.call('SET', MARKER, ARGV[1], 'PX', ARGV[2])
return {1, this_run, intact, unpack(out)}
