-- Precedes the scripts that need the run of the server.

-- server_run returns it: the run ID, new with each start, and the replication ID,
-- new each time the server becomes a primary. It returns '' if INFO lacks one.
local function server_run()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local role = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  return run and role and run .. '-' .. role or ''
end

