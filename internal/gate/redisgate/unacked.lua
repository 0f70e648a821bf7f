-- Reports which requests are still in the stream.
--
-- ARGV[1]  generation
-- ARGV[2…] tickets
-- returns  1 or 0 per ticket, or NOTLOADED
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation')
if not h[1] or h[1] ~= run() or h[2] ~= ARGV[1] or redis.call('EXISTS', REQUESTS) == 0 then
  return NOT_LOADED
end
local out = {}
for i = 2, #ARGV do
  local id = ARGV[i] .. '-' .. ARGV[1]
  out[i - 1] = #redis.call('XRANGE', REQUESTS, id, id)
end
return out
