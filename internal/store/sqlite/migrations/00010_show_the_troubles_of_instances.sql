-- +goose Up
-- What degraded the instance at its last heartbeat, in JSON.
ALTER TABLE instances ADD COLUMN troubles TEXT NOT NULL DEFAULT '[]';

-- +goose Down
ALTER TABLE instances DROP COLUMN troubles;
