-- Adds as many entries as fit, in order, or none after the deadline.
--
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  maximum length of the stream
-- ARGV[3]  deadline in Unix microseconds, by this server's clock
-- ARGV[4…] per entry: key, message, dispatch
-- returns  {added, 1 if every earlier entry had been read, else 0, 1 if the stream and
--          its group were created, else 0},
--          or {-1, 0, 0} if the stream exists without the group: nothing was
--          added, call make_group first
--
-- A missing stream is created with its group and its first entries in one
-- step, so that no other client can destroy it in between.
-- The script asks for the server's run itself, so that it always is the run of
-- the server that stores the entries.
local now = redis.call('TIME')
if now[1] * 1000000 + now[2] > tonumber(ARGV[3]) then
  return {0, 0, 0}
end

local function parts(id)
  local millis, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(millis), tonumber(seq)
end

local exists = redis.call('EXISTS', KEYS[1]) == 1
local all_read = 1
if exists then
  local delivered = last_delivered(KEYS[1], ARGV[1])
  if not delivered then
    return {-1, 0, 0}
  end
  local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  if newest then
    local newest_millis, newest_seq = parts(newest[1])
    local millis, seq = parts(delivered)
    if newest_millis > millis or (newest_millis == millis and newest_seq > seq) then
      all_read = 0
    end
  end
end

local length = redis.call('XLEN', KEYS[1])
local fit = math.min(tonumber(ARGV[2]) - length, (#ARGV - 3) / 3)
if fit <= 0 then
  return {0, 0, 0}
end

local run = server_run()
if run == '' then
  return redis.error_reply('ERR INFO names no run_id or no master_replid')
end
if not exists then
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
end
for i = 0, fit - 1 do
  redis.call('XADD', KEYS[1], '*',
    'key', ARGV[4 + 3 * i], 'message', ARGV[5 + 3 * i], 'dispatch', ARGV[6 + 3 * i], 'run', run)
end
return {fit, all_read, exists and 0 or 1}
