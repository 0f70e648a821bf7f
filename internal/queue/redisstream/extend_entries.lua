-- Renews the lease of entries that a consumer still owns.
--
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3…] entry ids
-- returns  the ids that were renewed
--
-- XCLAIM alone would take entries from whoever has them; JUSTID leaves the
-- delivery counter as it is.
local owned = {}
for i = 3, #ARGV do
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if pending.err then
    if string.find(pending.err, 'NOGROUP', 1, true) then
      return {}
    end
    return pending
  end
  if #pending == 1 then
    owned[#owned + 1] = ARGV[i]
  end
end
if #owned == 0 then
  return {}
end
owned[#owned + 1] = 'IDLE'
owned[#owned + 1] = 0
owned[#owned + 1] = 'JUSTID'
return redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(owned))
