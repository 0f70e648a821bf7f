-- +goose Up
-- The governor of the instance at its last heartbeat, in JSON.
ALTER TABLE instances ADD COLUMN governor TEXT NOT NULL DEFAULT 'null';

-- +goose Down
ALTER TABLE instances DROP COLUMN governor;
