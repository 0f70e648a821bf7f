-- Writes users to the new line and the new request stream.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  run of the server when the load began
-- ARGV[3]  new expiry of the marker in milliseconds
-- ARGV[4]  template id
-- ARGV[5]  generation
-- ARGV[6]  ticket of the first user
-- ARGV[7…] users, at most 500
-- returns  1, or LOADLOST
--
-- XADD fails if a ticket is not above all earlier ones of this load.
if lost(ARGV[1], ARGV[2]) then
  return LOAD_LOST
end
if #ARGV < 7 then
  redis.call('PEXPIRE', MARKER, ARGV[3])
  return 1
end
redis.call('ZCARD', NEW_LINE) -- fails if the key has a wrong type
if redis.call('EXISTS', NEW_REQUESTS) == 0 then
  redis.call('XGROUP', 'CREATE', NEW_REQUESTS, GROUP, '0', 'MKSTREAM')
end
local scored = {}
for i = 7, #ARGV do
  local ticket, member = text(tonumber(ARGV[6]) + i - 7), ARGV[4] .. ':' .. ARGV[i]
  request(NEW_REQUESTS, ARGV[4], member, ARGV[i], ticket, ARGV[5])
  scored[#scored + 1] = ticket
  scored[#scored + 1] = member
end
redis.call('ZADD', NEW_LINE, unpack(scored))
redis.call('PEXPIRE', MARKER, ARGV[3])
return 1
