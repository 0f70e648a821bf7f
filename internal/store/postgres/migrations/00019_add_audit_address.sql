-- +goose Up
-- The address of the client of each change. A constant default rewrites no rows, and
-- instances of the version before insert without it.
ALTER TABLE audit ADD COLUMN IF NOT EXISTS address text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE audit DROP COLUMN address;
