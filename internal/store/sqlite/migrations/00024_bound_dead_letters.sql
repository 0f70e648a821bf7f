-- +goose Up
-- Of a long value only the beginning is kept. These say what the whole was: its length in
-- bytes and its SHA-256.
ALTER TABLE dead_letters ADD COLUMN value_length INTEGER;
ALTER TABLE dead_letters ADD COLUMN value_hash BLOB;

-- +goose Down
ALTER TABLE dead_letters DROP COLUMN value_hash;
ALTER TABLE dead_letters DROP COLUMN value_length;
