-- Adds as many entries as fit, in order, or none when it is too late.
--
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  most entries the stream may hold
-- ARGV[3]  deadline, Unix microseconds by this server's clock
-- ARGV[4…] per entry: key, message, dispatch
-- returns  {added, 1 if the stream was empty before else 0},
--          or {-1, 0} when there is a stream without the group: nothing was
--          added, make_group first
--
-- A missing stream is made together with its group, in one step with its first
-- entries, so that nobody can destroy it in between.
-- The run id of this very server is asked for in here, so that it cannot be
-- another one than the server that takes the entries.
local now = redis.call('TIME')
if now[1] * 1000000 + now[2] > tonumber(ARGV[3]) then
  return {0, 0}
end

local exists = redis.call('EXISTS', KEYS[1]) == 1
if exists then
  local grouped = false
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    grouped = grouped or group[2] == ARGV[1]
  end
  if not grouped then
    return {-1, 0}
  end
end

local length = redis.call('XLEN', KEYS[1])
local fit = math.min(tonumber(ARGV[2]) - length, (#ARGV - 3) / 3)
if fit <= 0 then
  return {0, 0}
end

local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if not run then
  return redis.error_reply('ERR INFO server names no run_id')
end
if not exists then
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
end
for i = 0, fit - 1 do
  redis.call('XADD', KEYS[1], '*',
    'key', ARGV[4 + 3 * i], 'message', ARGV[5 + 3 * i], 'dispatch', ARGV[6 + 3 * i], 'run', run)
end
return {fit, length == 0 and 1 or 0}
