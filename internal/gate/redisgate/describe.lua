-- Describes the gate.
--
-- returns  15 numbers, see header in head.lua
return header(run())
