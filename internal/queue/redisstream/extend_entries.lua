-- Renews the lease of the entries that a consumer still owns.
--
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3…] entry IDs
-- returns  the IDs that were renewed
--
-- XCLAIM alone would take entries from their owners. JUSTID does not change the
-- delivery counter.
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
