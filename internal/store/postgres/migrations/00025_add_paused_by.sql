-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- Empty if Largesse paused the promotion, or if an earlier version did for a person.
ALTER TABLE promotions ADD COLUMN IF NOT EXISTS paused_by text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE promotions DROP COLUMN IF EXISTS paused_by;
