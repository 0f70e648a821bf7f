-- Returns users of the line of a closed gate, by rank.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  run of the server when the load began
-- ARGV[3]  new expiry of the marker in milliseconds
-- ARGV[4]  template id
-- ARGV[5]  rank of the first user
-- ARGV[6]  maximum number of users
-- returns  {user, ticket as text, generation of the request as text, '0' = the stream
--          has none, user, …}, or LOADLOST
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'mode')
if lost(ARGV[1], ARGV[2]) or h[1] ~= CLOSED then
  return LOAD_LOST
end
redis.call('PEXPIRE', MARKER, ARGV[3])
local page = redis.call('ZRANGE', LINE, ARGV[5], ARGV[5] + ARGV[6] - 1, 'WITHSCORES')
local out = {}
for i = 1, #page, 2 do
  local ticket = text(tonumber(page[i + 1]))
  out[#out + 1] = string.sub(page[i], #ARGV[4] + 2)
  out[#out + 1] = ticket
  out[#out + 1] = born(ticket, h[2], h[3])
end
return out
