-- Returns a page of the holdings.
--
-- ARGV[1]  generation of the cursor
-- ARGV[2]  cursor, 0 = first page
-- ARGV[3]  approximate size of the page
-- returns  {generation, version, cursor of the next page as text, 0 = last page,
--          user, holding as in KEYS[4], …}, or NOTLOADED
--
-- A cursor of another generation belongs to another hash, so it starts over.
local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'version')
if not h[1] or h[1] ~= run() then
  return NOT_LOADED
end
local page = redis.call('HSCAN', HOLDERS, h[2] == ARGV[1] and ARGV[2] or '0', 'COUNT', ARGV[3])
local out = {tonumber(h[2]), tonumber(h[3]), page[1]}
for i = 1, #page[2] do
  out[3 + i] = page[2][i]
end
return out
