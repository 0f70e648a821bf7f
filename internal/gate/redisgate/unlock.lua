-- Gives the SYNC lock up, if it is still that token's.
--
-- KEYS[1]  lock
-- ARGV[1]  token
-- returns  1 when it was, 0 when not
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
