-- Returns the numbers of the gate that belong to a page of the line.
--
-- returns  {generation, version, settled, the last ticket}, or NOTLOADED
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'version', 'settled', 'next')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
return {tonumber(h[2]), tonumber(h[3]), tonumber(h[4]), tonumber(h[5])}
