-- Describes the gate.
--
-- returns  18 numbers, see header in head.lua
return header(run())
