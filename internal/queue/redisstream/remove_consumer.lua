-- One step of removing a consumer: gives some of its pending entries to the
-- heir, or removes the consumer if it has none.
--
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  heir, '' for none
-- ARGV[4]  maximum entries of this step
-- returns  the number of entries that the heir got (call again), 0 if the
--          consumer is removed, -1 if it has pending entries and there is no heir
--
-- XGROUP DELCONSUMER discards pending entries, so the script calls it only after
-- it has found none. The heir gets the entries with their idle time.
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[4], ARGV[2])
if pending.err then
  if string.find(pending.err, 'NOGROUP', 1, true) then
    return 0
  end
  return pending
end
if #pending == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
  return 0
end
if ARGV[3] == '' then
  return -1
end
for _, entry in ipairs(pending) do
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, entry[1], 'IDLE', entry[3], 'JUSTID')
end
return #pending
