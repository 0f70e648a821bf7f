-- Lays beside what the new gate will know of users.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  milliseconds that his marker stands from now on
-- ARGV[3]  how many facts
-- ARGV[4…] users and what they hold as in KEYS[4]; users that will not be taken
--          over and their tickets
-- returns  1 when it was done, 0 when the marker is not his
if redis.call('GET', MARKER) ~= ARGV[1] then
  return 0
end
local last = 3 + 2 * tonumber(ARGV[3])
redis.call('HLEN', GONE) -- fails on a key of a wrong type
if last > 3 then
  redis.call('HSET', BESIDE, unpack(ARGV, 4, last))
end
if #ARGV > last then
  redis.call('HSET', GONE, unpack(ARGV, last + 1))
end
redis.call('PEXPIRE', MARKER, ARGV[2])
return 1
