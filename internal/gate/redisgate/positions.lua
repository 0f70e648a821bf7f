-- Returns the positions of users in line.
--
-- ARGV[1]  template id
-- ARGV[2…] users
-- returns  {generation, version, service time, and per user: ticket and rank, or 0
--          if the user is not in line}, or NOTLOADED
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'version', 'service')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
local out, members = {tonumber(h[2]), tonumber(h[3]), tonumber(h[4])}, {}
if #ARGV == 1 then
  return out
end
for i = 2, #ARGV do
  members[i - 1] = ARGV[1] .. ':' .. ARGV[i]
end
for i, ticket in ipairs(redis.call('ZMSCORE', LINE, unpack(members))) do
  if ticket then
    out[#out + 1] = tonumber(ticket)
    out[#out + 1] = redis.call('ZRANK', LINE, members[i])
  else
    out[#out + 1] = 0
  end
end
return out
