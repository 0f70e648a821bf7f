-- Returns the run of the server that has a stream.
--
-- KEYS[1]  stream
return server_run()
