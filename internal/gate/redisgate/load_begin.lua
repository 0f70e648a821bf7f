-- Sets the marker of a loader, unless somebody else's stands.
--
-- ARGV[1]  his token
-- ARGV[2]  milliseconds that it stands
-- returns  {1 if the marker is his else 0, run of this server, and 14 numbers
--          as header (head.lua) has them}
--
-- What was laid beside, by an earlier loader or in an earlier try of this one,
-- goes first, so that a full server can be loaded, too.
local this_run = run()
local out = header(this_run)
local stands = redis.call('GET', MARKER)
if stands and stands ~= ARGV[1] then
  return {0, this_run, unpack(out)}
end
redis.call('UNLINK', BESIDE, GONE)
redis.call('SET', MARKER, ARGV[1], 'PX', ARGV[2])
return {1, this_run, unpack(out)}
