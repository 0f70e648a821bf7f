-- Releases the SYNC lock if it still has this token.
--
-- KEYS[1]  lock
-- ARGV[1]  token
-- returns  1 if it had, 0 if not
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
