-- Describes a stream, with the time at which that is true.
--
-- KEYS[1]  stream
-- ARGV[1]  group
-- returns  {1 if the stream exists else 0, its length, number of pending entries,
--           ID of the oldest entry or '', ID of the oldest pending entry or '',
--           time of this server in Unix seconds, microseconds of that second}
local now = redis.call('TIME')
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {0, 0, 0, '', '', tonumber(now[1]), tonumber(now[2])}
end
local count, oldest_pending = 0, ''
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
if pending.err then
  if not string.find(pending.err, 'NOGROUP', 1, true) then
    return pending
  end
else
  count, oldest_pending = pending[1], pending[2] or ''
end
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
return {1, redis.call('XLEN', KEYS[1]), count, oldest and oldest[1] or '', oldest_pending,
  tonumber(now[1]), tonumber(now[2])}
