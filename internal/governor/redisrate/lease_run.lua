-- Leases the next send times of a rate.
--
-- KEYS[1]  the rate's next send time in microseconds since 1970
-- ARGV[1]  microseconds between two send times, possibly with a fraction
-- ARGV[2]  maximum number of send times
-- ARGV[3]  latest send time, in microseconds from now
-- returns  {microseconds until the first, number of send times}; without any:
--          microseconds after which a caller should ask again
--
-- A missing key means the same as a time in the past.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local every, most, ahead = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local next = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
if next > now + ahead + every + 1 then
  next = now + every -- the rate was slower before, or the clock was set back
end
if next > now + ahead then
  return {math.ceil(next - now - ahead), 0}
end
local count = math.min(most, math.floor((now + ahead - next) / every) + 1)
local after = next + count * every
redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000) + 1000)
return {math.floor(next - now), count}
