-- Removes users with a settled ticket from the line of a closed gate.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  run of the server when the load began
-- ARGV[3]  new expiry of the marker in milliseconds
-- ARGV[4]  settled
-- ARGV[5]  maximum number of users to remove
-- returns  how many such users are left, or LOADLOST
if lost(ARGV[1], ARGV[2]) or redis.call('HGET', TEMPLATE, 'run') ~= CLOSED then
  return LOAD_LOST
end
local settled = redis.call('ZCOUNT', LINE, '-inf', ARGV[4])
local most = tonumber(ARGV[5])
if settled > 0 then
  redis.call('ZREMRANGEBYRANK', LINE, 0, math.min(settled, most) - 1)
end
redis.call('PEXPIRE', MARKER, ARGV[3])
return math.max(settled - most, 0)
