-- Removes everything that is stored for a template.
--
-- KEYS     all keys of the template
-- returns  how many there were
return redis.call('UNLINK', unpack(KEYS))
