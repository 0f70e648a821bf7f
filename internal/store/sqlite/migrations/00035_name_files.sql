-- +goose Up
-- The name that the sender gave. Empty if there was none.
ALTER TABLE uploads ADD COLUMN file_name TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE uploads DROP COLUMN file_name;
