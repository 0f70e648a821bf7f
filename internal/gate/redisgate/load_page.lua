-- Returns users of the line of a closed gate, by rank.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  run of the server when the load began
-- ARGV[3]  new expiry of the marker in milliseconds
-- ARGV[4]  template id
-- ARGV[5]  rank of the first user
-- ARGV[6]  maximum number of users
-- returns  {user, ticket as text, user, ticket, …}, or LOADLOST
if lost(ARGV[1], ARGV[2]) or redis.call('HGET', TEMPLATE, 'run') ~= CLOSED then
  return LOAD_LOST
end
redis.call('PEXPIRE', MARKER, ARGV[3])
local page = redis.call('ZRANGE', LINE, ARGV[5], ARGV[5] + ARGV[6] - 1, 'WITHSCORES')
for i = 1, #page, 2 do
  page[i], page[i + 1] = string.sub(page[i], #ARGV[4] + 2), text(tonumber(page[i + 1]))
end
return page
