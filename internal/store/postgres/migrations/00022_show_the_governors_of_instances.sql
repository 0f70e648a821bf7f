-- +goose Up
-- The governor of the instance at its last heartbeat, in JSON. A constant default rewrites
-- no rows, and instances of the version before insert without it.
ALTER TABLE instances ADD COLUMN IF NOT EXISTS governor text NOT NULL DEFAULT 'null';

-- +goose Down
ALTER TABLE instances DROP COLUMN governor;
