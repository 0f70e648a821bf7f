-- Returns the commands that the user of this connection may not run, without running them.
--
-- ARGV[…]  per command: the number of its words, and its words
local denied, at = {}, 1
while ARGV[at] do
  local words = tonumber(ARGV[at])
  local known, allowed = pcall(redis.acl_check_cmd, unpack(ARGV, at + 1, at + words))
  if not known or not allowed then
    denied[#denied + 1] = ARGV[at + 1]
  end
  at = at + words + 1
end
return denied
