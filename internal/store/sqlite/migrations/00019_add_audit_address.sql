-- +goose Up
-- The address of the client of each change.
ALTER TABLE audit ADD COLUMN address TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE audit DROP COLUMN address;
