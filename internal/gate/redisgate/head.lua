-- Precedes every script of a gate.
--
-- KEYS[1]   template hash: the state that the gate decides by
-- KEYS[2]   line: member = request id, score = ticket
-- KEYS[3]   request stream; the id of an entry is {ticket}-{generation}
-- KEYS[4]   holdings hash: user = {coupons held}:{coupon id}
-- KEYS[5]   stock
-- (scripts on the hot path get only these)
-- KEYS[6]   count
-- KEYS[7]   issued_total
-- KEYS[8]   outcome stream
-- KEYS[9]   marker of a loader: its token
-- KEYS[10]  holdings stored by the loader for the new gate
-- KEYS[11]  request stream that the loader writes for the new gate
-- KEYS[12]  line that the loader writes for the new gate
--
-- A gate is served only by the server run that it was loaded into, and only until a
-- load closes it. The template hash has the run as 'v2-' and the run of the server,
-- or 'closed'. The prefix keeps programs out that know only version 1 of this
-- protocol: they compare the field with the bare run. The scripts ask for the run
-- themselves, so that it is the run of the very server that executes
-- them. It consists of the run id, which is new after each start, and of the
-- replication id, which is new each time the server becomes a master.
--
-- Numbers are doubles: tickets, versions and generations stay below 2^53. Coupon
-- ids may be higher, so they stay text. The first write of a script decides whether
-- a full server allows the script; it allows all later writes. So writes that free
-- memory, and writes that may fail, come first where it matters.
local TEMPLATE, LINE, REQUESTS, HOLDERS, STOCK = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local COUNT, ISSUED, OUTCOMES = KEYS[6], KEYS[7], KEYS[8]
local MARKER, NEW_HOLDERS, NEW_REQUESTS, NEW_LINE = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local GROUP = 'coupon-issue-group'
local NOT_LOADED = {err = 'NOTLOADED the gate has to be loaded'}
local LOAD_LOST = {err = 'LOADLOST another loader has taken over, or the server has restarted'}
local CLOSED = 'closed'
local CHUNK = 1000 -- unpack() allows about 8,000

local function run()
  local info = redis.call('INFO', 'server', 'replication')
  local id, role = string.match(info, 'run_id:(%x+)'), string.match(info, 'master_replid:(%x+)')
  if not id or not role then
    error('INFO names no run_id or no master_replid')
  end
  return 'v2-' .. id .. '-' .. role
end

-- text formats a whole number without an exponent.
local function text(n)
  return string.format('%.0f', n)
end

local function micros()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- publish gives a hint, and ignores failures.
local function publish(channel, kind, template)
  redis.pcall('PUBLISH', channel, kind .. ':' .. template)
end

-- request adds an entry to a request stream. The caller adds the member to the line.
local function request(stream, template, member, user, ticket, generation)
  redis.call('XADD', stream, 'NOMKSTREAM', ticket .. '-' .. generation,
    'requestId', member, 'templateId', template, 'userId', user,
    'ticket', ticket, 'generation', generation)
end

-- grouped reports whether the request stream and its group exist.
local function grouped()
  if redis.call('EXISTS', REQUESTS) == 0 then
    return false
  end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', REQUESTS)) do
    if group[2] == GROUP then
      return true
    end
  end
  return false
end

-- born returns the generation of the request with a ticket in line as text, '0' = the
-- stream has none. In KAFKA mode all are of the gate's generation, and those that the
-- broker has are not in the stream any more.
local function born(ticket, generation, mode)
  if mode == 'KAFKA' then
    return generation
  end
  local entry = redis.call('XRANGE', REQUESTS, ticket, ticket, 'COUNT', 1)[1]
  return entry and string.match(entry[1], '-(%d+)$') or '0'
end

-- leave removes those requests from the line whose users have left. ARGV has user,
-- ticket and generation of each, from first to last.
local function leave(template, first, last, generation, mode)
  for i = first, last, 3 do
    local member = template .. ':' .. ARGV[i]
    local ticket = redis.call('ZSCORE', LINE, member)
    if ticket and tonumber(ticket) == tonumber(ARGV[i + 1]) and born(ARGV[i + 1], generation, mode) == ARGV[i + 2] then
      redis.call('ZREM', LINE, member)
    end
  end
end

-- come_back puts users back in line whose requests are in the stream, with tickets above
-- settled. ARGV has user, ticket and generation of each, from first to last.
local function come_back(template, first, last, settled)
  for i = first, last, 3 do
    local id, member = ARGV[i + 1] .. '-' .. ARGV[i + 2], template .. ':' .. ARGV[i]
    local entry = redis.call('XRANGE', REQUESTS, id, id)[1]
    if entry and entry[2][2] == member and tonumber(ARGV[i + 1]) > settled then
      redis.call('ZADD', LINE, 'NX', ARGV[i + 1], member)
    end
  end
end

-- lost reports whether a load cannot continue: the marker has another token, or the
-- server has another run than when the load began.
local function lost(token, this_run)
  return redis.call('GET', MARKER) ~= token or run() ~= this_run
end

-- first returns the lowest ticket in line, 0 = the line is empty.
local function first()
  return tonumber(redis.call('ZRANGE', LINE, 0, 0, 'WITHSCORES')[2] or 0)
end

-- counter reads a counter for other systems; -1 = missing.
local function counter(key)
  local n = redis.pcall('GET', key)
  return type(n) == 'string' and tonumber(n) or -1
end

-- header describes the gate in 20 numbers: exists, loaded, generation, version,
-- settled, next (the last ticket), the first ticket in line, total, live,
-- issued_total, granted, used, grants, the counters stock, count and issued_total
-- (-1 = missing), waiting, backlog, and in microseconds last_ask (the latest request)
-- and service (the service time).
local function header(this_run)
  local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'version', 'settled', 'next',
    'total', 'live', 'issued_total', 'last_ask', 'service', 'granted', 'used', 'grants')
  if not h[1] then
    return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
  end
  local loaded = h[1] == this_run and grouped()
  return {1, loaded and 1 or 0, tonumber(h[2]), tonumber(h[3]), tonumber(h[4]), tonumber(h[5]), first(),
    tonumber(h[6]), tonumber(h[7]), tonumber(h[8]),
    tonumber(h[11] or 0), tonumber(h[12] or 0), tonumber(h[13] or 0), counter(STOCK), counter(COUNT), counter(ISSUED),
    redis.call('ZCARD', LINE), redis.call('XLEN', REQUESTS), tonumber(h[9]), tonumber(h[10])}
end
