-- Stores holdings for the new gate.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  run of the server when the load began
-- ARGV[3]  new expiry of the marker in milliseconds
-- ARGV[4…] users and holdings as in KEYS[4], at most 1,000
-- returns  1, or LOADLOST
if lost(ARGV[1], ARGV[2]) then
  return LOAD_LOST
end
if #ARGV > 3 then
  redis.call('HSET', NEW_HOLDERS, unpack(ARGV, 4)) -- a full server refuses it, as it comes first
end
redis.call('PEXPIRE', MARKER, ARGV[3])
return 1
