-- Delivers new requests to a consumer. Never blocks.
--
-- ARGV[1]  consumer
-- ARGV[2]  maximum number of requests
-- returns  {generation of the gate, and per request: user, ticket and generation, all
--          as text}, or NOTLOADED
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, ARGV[1], 'COUNT', ARGV[2], 'STREAMS', REQUESTS, '>')
if reply and reply.err then
  return string.find(reply.err, 'NOGROUP', 1, true) and NOT_LOADED or reply
end
local out = {tonumber(h[2])}
for _, entry in ipairs(reply and reply[1][2] or {}) do
  out[#out + 1] = entry[2][6]
  out[#out + 1], out[#out + 2] = string.match(entry[1], '^(%d+)-(%d+)$')
end
return out
