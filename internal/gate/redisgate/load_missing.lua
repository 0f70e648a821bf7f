-- Returns those requests of a closed gate whose users are not in line.
--
-- ARGV[1]  token of the loader
-- ARGV[2]  run of the server when the load began
-- ARGV[3]  new expiry of the marker in milliseconds
-- ARGV[4]  template id
-- ARGV[5]  ticket: only requests with higher ones are looked at
-- ARGV[6]  maximum number of requests that are looked at
-- returns  {the last ticket that was looked at, ARGV[5] = none, user, ticket, generation
--          as text, user, …}, or LOADLOST
if lost(ARGV[1], ARGV[2]) or redis.call('HGET', TEMPLATE, 'run') ~= CLOSED then
  return LOAD_LOST
end
redis.call('PEXPIRE', MARKER, ARGV[3])
local page = redis.call('XRANGE', REQUESTS, text(tonumber(ARGV[5]) + 1), '+', 'COUNT', ARGV[6])
local out, members = {tonumber(ARGV[5])}, {}
for i, entry in ipairs(page) do
  members[i] = entry[2][2]
end
local tickets = #page > 0 and redis.call('ZMSCORE', LINE, unpack(members)) or {}
for i, entry in ipairs(page) do
  local ticket, generation = string.match(entry[1], '^(%d+)-(%d+)$')
  if not tickets[i] then
    out[#out + 1] = string.sub(members[i], #ARGV[4] + 2)
    out[#out + 1] = tonumber(ticket)
    out[#out + 1] = generation
  end
  out[1] = tonumber(ticket)
end
return out
