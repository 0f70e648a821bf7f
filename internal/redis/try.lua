-- Runs commands that change nothing, to find out whether the server refuses one of them.
--
-- KEYS     their keys
-- ARGV[…]  per command: the number of its words, and its words
-- returns  1, or the first refusal, followed by the first two words of the command
--
-- That there is no such key or group is no refusal. The first write decides whether a full
-- server refuses the writes of a script.
local at = 1
while ARGV[at] do
  local words = tonumber(ARGV[at])
  local reply = redis.pcall(unpack(ARGV, at + 1, at + words))
  local err = type(reply) == 'table' and reply.err
  if err and not string.find(err, 'NOGROUP', 1, true) and not string.find(err, 'no such key', 1, true)
    and not string.find(err, 'requires the key to exist', 1, true) then
    return redis.error_reply(err .. ' (' .. table.concat(ARGV, ' ', at + 1, at + math.min(words, 2)) .. ')')
  end
  at = at + words + 1
end
return 1
