-- Puts users back in the line of a closed gate, whose requests are in the stream.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  run of the server when the load began
-- ARGV[3]  new expiry of the marker in milliseconds
-- ARGV[4]  template id
-- ARGV[5…] user, ticket and generation of each request
-- returns  1, or LOADLOST
if lost(ARGV[1], ARGV[2]) or redis.call('HGET', TEMPLATE, 'run') ~= CLOSED then
  return LOAD_LOST
end
come_back(ARGV[4], 5, #ARGV, 0)
redis.call('PEXPIRE', MARKER, ARGV[3])
return 1
