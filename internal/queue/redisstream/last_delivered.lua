-- Precedes the scripts that need the ID of the latest entry delivered to a group.

-- last_delivered returns it, or nil if the stream, which exists, has no such group.
local function last_delivered(stream, name)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if group[2] == name then
      for i = 1, #group, 2 do
        if group[i] == 'last-delivered-id' then
          return group[i + 1]
        end
      end
    end
  end
end

