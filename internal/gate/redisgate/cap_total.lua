-- Caps the gate's promises for a time, if they fit below the cap.
--
-- ARGV[1]  cap
-- ARGV[2]  how long the cap counts, in microseconds
-- returns  1 if the promises fit, 0 if not, or NOTLOADED
--
-- Only admit.lua reads the cap, and only load_swap.lua deletes it.
local h = redis.call('HMGET', TEMPLATE, 'run', 'live')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
if tonumber(h[2]) + redis.call('ZCARD', LINE) > tonumber(ARGV[1]) then
  return 0
end
redis.call('HDEL', TEMPLATE, 'cap', 'cap_until') -- a full server allows this write, and then the next one
redis.call('HSET', TEMPLATE, 'cap', ARGV[1], 'cap_until', text(micros() + tonumber(ARGV[2])))
return 1
