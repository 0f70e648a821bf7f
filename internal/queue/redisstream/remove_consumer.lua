-- One step of removing a consumer: hands some of what it has pending to the
-- heir, or removes it when it has nothing left.
--
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  heir, '' for none
-- ARGV[4]  most entries to hand on in this step
-- returns  how many were handed on (call again), 0 when the consumer is gone,
--          -1 when it has entries pending and there is no heir
--
-- XGROUP DELCONSUMER forgets what is pending, so it stands only where the same
-- call has found nothing. The heir gets entries as idle as they were.
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
