-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- How often the counts were repaired. Two repairs that have read the same
-- difference must not both add it.
ALTER TABLE summaries ADD COLUMN IF NOT EXISTS repairs bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE summaries DROP COLUMN IF EXISTS repairs;
