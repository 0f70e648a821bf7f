-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- The API key of the caller of each change (0: none), or the sub of their token.
ALTER TABLE audit
  ADD COLUMN IF NOT EXISTS key_id bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS token_subject text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE audit
  DROP COLUMN IF EXISTS token_subject,
  DROP COLUMN IF EXISTS key_id;
