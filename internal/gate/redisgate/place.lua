-- Returns the request of a user in line.
--
-- ARGV[1]  template id
-- ARGV[2]  user
-- returns  {generation, version, and if the user is in line: ticket, generation of
--          the request as text, '0' = the stream has none}, or NOTLOADED
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'version', 'mode')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
local out = {tonumber(h[2]), tonumber(h[3])}
local ticket = redis.call('ZSCORE', LINE, ARGV[1] .. ':' .. ARGV[2])
if ticket then
  out[3] = tonumber(ticket)
  out[4] = born(text(out[3]), h[2], h[4])
end
return out
