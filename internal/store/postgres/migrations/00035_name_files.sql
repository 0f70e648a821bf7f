-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- The name that the sender gave. Empty if there was none.
ALTER TABLE uploads ADD COLUMN IF NOT EXISTS file_name text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE uploads DROP COLUMN IF EXISTS file_name;
