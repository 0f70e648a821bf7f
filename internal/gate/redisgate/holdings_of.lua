-- Returns how many holders there are.
--
-- returns  {generation, version, number of holders}, or NOTLOADED
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'version')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
return {tonumber(h[2]), tonumber(h[3]), redis.call('HLEN', HOLDERS)}
