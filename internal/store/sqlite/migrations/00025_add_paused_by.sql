-- +goose Up
-- Empty if Largesse paused the promotion, or if an earlier version did for a person.
ALTER TABLE promotions ADD COLUMN paused_by TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE promotions DROP COLUMN paused_by;
