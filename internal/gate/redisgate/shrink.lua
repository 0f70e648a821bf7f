-- Lowers the granted places to those that are used or in line.
--
-- returns  {generation, version, granted, grants}, or NOTLOADED
--
-- Only a grant of the rows raises granted again.
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'version', 'granted', 'used', 'grants')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
local granted = math.min(tonumber(h[4]), tonumber(h[5]) + redis.call('ZCARD', LINE))
redis.call('HDEL', TEMPLATE, 'granted') -- a full server allows this write, and then the next one
redis.call('HSET', TEMPLATE, 'granted', text(granted))
return {tonumber(h[2]), tonumber(h[3]), granted, tonumber(h[6])}
