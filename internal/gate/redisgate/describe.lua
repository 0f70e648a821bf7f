-- Describes the gate.
--
-- returns  16 numbers, see header in head.lua
return header(run())
