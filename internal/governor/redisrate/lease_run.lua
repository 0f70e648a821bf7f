-- Gives out the next send times of a rate.
--
-- KEYS[1]  the rate: its next send time in microseconds since 1970
-- ARGV[1]  microseconds from one send time to the next, may have a fraction
-- ARGV[2]  how many at most
-- ARGV[3]  how many microseconds ahead at most
-- returns  {microseconds until the first, how many}; of none: until it is worth
--          asking again
--
-- A key that is gone knows as much as one in the past.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local every, most, ahead = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local next = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
if next > now + ahead + every + 1 then
  next = now + every -- it was a slower pace, or the clock was set back
end
if next > now + ahead then
  return {math.ceil(next - now - ahead), 0}
end
local count = math.min(most, math.floor((now + ahead - next) / every) + 1)
local after = next + count * every
redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000) + 1000)
return {math.floor(next - now), count}
