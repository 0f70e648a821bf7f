-- Caps what is promised for a while, if what is promised already fits.
--
-- ARGV[1]  cap
-- ARGV[2]  for how many microseconds it holds
-- returns  1 when it fits, 0 when not, or NOTLOADED
--
-- Only ask looks at the cap, only a swap drops it.
local h = redis.call('HMGET', TEMPLATE, 'run', 'live')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
if tonumber(h[2]) + redis.call('ZCARD', LINE) > tonumber(ARGV[1]) then
  return 0
end
redis.call('HDEL', TEMPLATE, 'cap', 'cap_until') -- a full server lets this pass, and then the next
redis.call('HSET', TEMPLATE, 'cap', ARGV[1], 'cap_until', text(micros() + tonumber(ARGV[2])))
return 1
