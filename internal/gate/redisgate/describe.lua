-- Describes the gate.
--
-- returns  20 numbers, see header in head.lua
return header(run())
