-- Claims the delivered and unacknowledged requests of all consumers.
--
-- ARGV[1]  consumer
-- ARGV[2]  only tickets above this
-- ARGV[3]  maximum number of requests
-- returns  the same as read.lua
--
-- XAUTOCLAIM skips entries that were deleted without being acknowledged, so it may
-- return nothing although more are pending. The script calls it up to the end.
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
local out, most, cursor = {tonumber(h[2])}, tonumber(ARGV[3]), text(tonumber(ARGV[2]) + 1) .. '-0'
repeat
  local reply = redis.pcall('XAUTOCLAIM', REQUESTS, GROUP, ARGV[1], 0, cursor, 'COUNT', most - (#out - 1) / 3)
  if reply.err then
    return string.find(reply.err, 'NOGROUP', 1, true) and NOT_LOADED or reply
  end
  cursor = reply[1]
  for _, entry in ipairs(reply[2]) do
    out[#out + 1] = entry[2][6]
    out[#out + 1], out[#out + 2] = string.match(entry[1], '^(%d+)-(%d+)$')
  end
until cursor == '0-0' or (#out - 1) / 3 >= most
return out
