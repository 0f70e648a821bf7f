#!lua flags=allow-oom
-- Leases the next send times of a rate, and exchanges what instances know of the
-- provider. internal/governor/rates.go says what the fields mean. All times are in
-- microseconds.
--
-- KEYS[1]  the rate's next send time, since 1970
-- KEYS[2]  what instances know of the provider: a hash; only with news
-- ARGV[1]  time between two send times, possibly with a fraction
-- ARGV[2]  maximum number of send times; 0 leases none
-- ARGV[3]  latest send time, from now
-- ARGV[4]  the length of a turn to probe
-- ARGV[5]  the longest block
-- ARGV[6]  the longest time until a probe
-- ARGV[7]  how long the hash is kept, in milliseconds
-- ARGV[8]  the instance; the next ones are its news
-- ARGV[9]  block for
-- ARGV[10] the outage that ended; 0: none
-- ARGV[11] down: 0 or 1
-- ARGV[12] want: 0 or 1
-- ARGV[13] failed probes after a probe that ended; -1: none ended
-- ARGV[14] next probe in
-- ARGV[15] a person ended the block: 0 or 1
-- returns  {time until the first send time, number of send times}; without any:
--          time after which a caller should ask again. With news, then: blocked for,
--          outage, up, turn, probe in, tries, number of the latest end of a block by a person
--
-- A missing key means the same as a time in the past. The field down of the hash is
-- the number of the current outage: the time at which it was first reported. The field
-- lifted is such a number, too. Apart from that, their times mean nothing. The script also runs when Redis is full: otherwise
-- what was dispatched before could not be charged. It needs a few bytes per rate, for a
-- while.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function lease()
  local every, most, ahead = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  if most == 0 then
    return 0, 0
  end
  local next = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
  if next > now + ahead + every + 1 then
    next = now + every -- the rate was slower before, or the clock was set back
  end
  if next > now + ahead then
    return math.ceil(next - now - ahead), 0
  end
  local count = math.min(most, math.floor((now + ahead - next) / every) + 1)
  local after = next + count * every
  redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000) + 1000)
  return math.floor(next - now), count
end

local first, count = lease()
if #KEYS == 1 then
  return {first, count}
end

local turn, block_max, probe_max = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local me = ARGV[8]
local block, answered, probe_in = tonumber(ARGV[9]), tonumber(ARGV[10]), math.min(tonumber(ARGV[14]), probe_max)
local down_news, want, ended = ARGV[11] == '1', ARGV[12] == '1', tonumber(ARGV[13])

local names = {'blocked', 'down', 'up', 'probe', 'owner', 'until', 'tries', 'lifted'}
local state = redis.call('HMGET', KEYS[2], unpack(names))
local s = {}
for i, name in ipairs(names) do
  s[name] = state[i] or ''
end
-- A clock that was set back leaves times far ahead.
local function at(name, most)
  local t = math.min(tonumber(s[name]) or 0, now + most)
  s[name] = t
end
at('blocked', block_max)
s.down = tonumber(s.down) or 0
s.lifted = tonumber(s.lifted) or 0
at('probe', probe_max)
at('until', turn)

local changed = false
local function set(name, value)
  s[name] = value
  changed = true
end

if ARGV[15] == '1' then
  set('blocked', 0)
  set('lifted', now)
end
if block > 0 and now + math.min(block, block_max) > s.blocked then
  set('blocked', now + math.min(block, block_max))
end
if down_news and s.down == 0 then
  set('down', now)
  set('up', '')
  set('probe', now + probe_in)
  set('owner', '')
  set('tries', 0)
end
if s.down > 0 and answered == s.down then
  set('down', 0)
  set('up', '1')
  set('owner', '')
end
local has_turn = 0
if s.down > 0 then
  if s.owner ~= '' and s['until'] <= now then
    set('owner', '')
  end
  if s.owner == me then
    if ended >= 0 then
      set('owner', '')
      set('tries', ended)
      set('probe', now + probe_in)
    elseif not want then
      set('owner', '')
    end
  end
  if want and ended < 0 and (s.owner == me or s.owner == '' and s.probe <= now) then
    if s.owner ~= me or s['until'] - now < turn / 2 then
      set('until', now + turn)
    end
    if s.owner ~= me then
      set('owner', me)
    end
    has_turn = 1
  end
end
if changed then
  redis.call('HSET', KEYS[2], 'blocked', string.format('%.0f', s.blocked), 'down', string.format('%.0f', s.down), 'up', s.up,
    'probe', string.format('%.0f', s.probe), 'owner', s.owner, 'until', string.format('%.0f', s['until']), 'tries', s.tries,
    'lifted', string.format('%.0f', s.lifted))
  redis.call('PEXPIRE', KEYS[2], ARGV[7])
end

local next_probe = 0
if has_turn == 0 then
  next_probe = math.max(s.probe - now, 0)
  if s.owner ~= '' then
    next_probe = math.max(next_probe, s['until'] - now)
  end
end
return {first, count, math.max(s.blocked - now, 0), s.down, s.up == '1' and 1 or 0, has_turn, next_probe, tonumber(s.tries) or 0, s.lifted}
