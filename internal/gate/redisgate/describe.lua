-- Describes the gate.
--
-- returns  14 numbers, as header (head.lua) has them
return header(run())
