-- Delivers new entries to consumers, one after the other. Never blocks.
--
-- KEYS[1]  stream
-- KEYS[2]  newest ID when the group was created again, if it ever was
-- ARGV[1]  group
-- ARGV[2…] per consumer: name, maximum entries
-- returns  {run of this server as in add_entries, value of KEYS[2] or '',
--           {index of the consumer in ARGV from 0, its entries, …}};
--          an empty array if there is no new entry, or no stream;
--          an error NOGROUP, with nothing delivered, if the stream lacks the group
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {}
end
local found = {}
for i = 2, #ARGV, 2 do
  local reply = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[i],
    'COUNT', ARGV[i + 1], 'STREAMS', KEYS[1], '>')
  if not reply then
    break
  end
  found[#found + 1] = i / 2 - 1
  found[#found + 1] = reply[1][2]
end
if #found == 0 then
  return found
end
return {server_run(), redis.call('GET', KEYS[2]) or '', found}
