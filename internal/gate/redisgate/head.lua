-- Stands in front of every script of a gate.
--
-- KEYS[1]   template hash: what the gate judges by
-- KEYS[2]   line: member = request id, score = ticket
-- KEYS[3]   request stream; the id of an entry is {ticket}-{generation}
-- KEYS[4]   holders hash: user = {slots held}:{coupon id}
-- KEYS[5]   stock
-- (ask and places are given no more than these)
-- KEYS[6]   count
-- KEYS[7]   issued_total
-- KEYS[8]   outcome stream
-- KEYS[9]   marker of a loader: his token
-- KEYS[10]  holders that he lays beside
-- KEYS[11]  users of the old line that he will not take over: user = ticket
-- KEYS[12]  the old line while it is taken over; gone when the script ends
--
-- A gate is served only by the run that it was loaded into. That is asked for
-- in here, so that it cannot be another than that of the server that executes:
-- its run id, new with each start, and its replication id, new each time it is
-- made a master.
--
-- Numbers are doubles: tickets, versions and generations stay below 2^53.
-- Coupon ids do not, and stay text. The first write of a script decides
-- whether a full server lets it pass (later ones always do), so what frees
-- comes first where that matters, and what may fail, too.
local TEMPLATE, LINE, REQUESTS, HOLDERS, STOCK = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local COUNT, ISSUED, OUTCOMES = KEYS[6], KEYS[7], KEYS[8]
local MARKER, BESIDE, GONE, TAKEN = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local GROUP = 'coupon-issue-group'
local NOT_LOADED = {err = 'NOTLOADED the gate has to be loaded'}
local CHUNK = 1000 -- unpack() has room for some 8,000

local function run()
  local info = redis.call('INFO', 'server', 'replication')
  local id, role = string.match(info, 'run_id:(%x+)'), string.match(info, 'master_replid:(%x+)')
  if not id or not role then
    error('INFO names no run_id or no master_replid')
  end
  return id .. '-' .. role
end

-- text writes a whole number without an exponent.
local function text(n)
  return string.format('%.0f', n)
end

local function micros()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- publish gives a hint; that it cannot is no failure.
local function publish(channel, kind, template)
  redis.pcall('PUBLISH', channel, kind .. ':' .. template)
end

-- request adds an entry to the request stream; its member is in line.
local function request(template, member, user, ticket, generation)
  redis.call('XADD', REQUESTS, 'NOMKSTREAM', ticket .. '-' .. generation,
    'requestId', member, 'templateId', template, 'userId', user,
    'ticket', ticket, 'generation', generation)
end

-- grouped says whether the request stream and its group are there.
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

-- header describes the gate in 14 numbers: exists, loaded, generation, version,
-- settled, next, total, live, issued_total, the counter of stock (-1 = there is
-- none), waiting, backlog, last_ask and service in microseconds.
local function header(this_run)
  local h = redis.call('HMGET', TEMPLATE, 'run', 'generation', 'version', 'settled', 'next',
    'total', 'live', 'issued_total', 'last_ask', 'service')
  if not h[1] then
    return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
  end
  local loaded = h[1] == this_run and grouped()
  local stock = redis.pcall('GET', STOCK)
  stock = type(stock) == 'string' and tonumber(stock) or -1
  return {1, loaded and 1 or 0, tonumber(h[2]), tonumber(h[3]), tonumber(h[4]), tonumber(h[5]),
    tonumber(h[6]), tonumber(h[7]), tonumber(h[8]), stock,
    redis.call('ZCARD', LINE), redis.call('XLEN', REQUESTS), tonumber(h[9]), tonumber(h[10])}
end
