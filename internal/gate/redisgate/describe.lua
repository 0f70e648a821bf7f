-- Describes the gate.
--
-- returns  14 numbers, see header in head.lua
return header(run())
