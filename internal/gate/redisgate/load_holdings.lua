-- Stores holdings for the new gate.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  new expiry of the marker in milliseconds
-- ARGV[3]  number of holdings
-- ARGV[4…] users and holdings as in KEYS[4]; users of the old line to leave out,
--          and their tickets
-- returns  1 if it was done, 0 if the loader does not hold the marker
if redis.call('GET', MARKER) ~= ARGV[1] then
  return 0
end
local last = 3 + 2 * tonumber(ARGV[3])
redis.call('HLEN', LEFT_OUT) -- fails if the key has a wrong type
if last > 3 then
  redis.call('HSET', NEW_HOLDERS, unpack(ARGV, 4, last))
end
if #ARGV > last then
  redis.call('HSET', LEFT_OUT, unpack(ARGV, last + 1))
end
redis.call('PEXPIRE', MARKER, ARGV[2])
return 1
