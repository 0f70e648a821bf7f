-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- Of a long value only the beginning is kept. These say what the whole was: its length in
-- bytes and its SHA-256.
ALTER TABLE dead_letters ADD COLUMN IF NOT EXISTS value_length bigint, ADD COLUMN IF NOT EXISTS value_hash bytea;

-- +goose Down
ALTER TABLE dead_letters DROP COLUMN IF EXISTS value_hash, DROP COLUMN IF EXISTS value_length;
