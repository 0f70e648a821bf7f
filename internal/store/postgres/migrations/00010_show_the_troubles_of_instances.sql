-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- What degraded the instance at its last heartbeat, in JSON.
ALTER TABLE instances ADD COLUMN IF NOT EXISTS troubles text NOT NULL DEFAULT '[]';

-- +goose Down
ALTER TABLE instances DROP COLUMN IF EXISTS troubles;
