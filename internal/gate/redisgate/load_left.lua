-- Removes users who have left from the line of a closed gate.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  run of the server when the load began
-- ARGV[3]  new expiry of the marker in milliseconds
-- ARGV[4]  template id
-- ARGV[5…] user, ticket and generation of each request
-- returns  1, or LOADLOST
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'mode')
if lost(ARGV[1], ARGV[2]) or h[1] ~= CLOSED then
  return LOAD_LOST
end
leave(ARGV[4], 5, #ARGV, h[2], h[3])
redis.call('PEXPIRE', MARKER, ARGV[3])
return 1
