-- +goose Up
-- How often the counts were repaired. Two repairs that have read the same
-- difference must not both add it.
ALTER TABLE summaries ADD COLUMN repairs INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE summaries DROP COLUMN repairs;
