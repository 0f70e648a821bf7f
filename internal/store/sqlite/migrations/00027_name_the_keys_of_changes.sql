-- +goose Up
-- The API key of the caller of each change (0: none), or the sub of their token.
ALTER TABLE audit ADD COLUMN key_id INTEGER NOT NULL DEFAULT 0;
ALTER TABLE audit ADD COLUMN token_subject TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE audit DROP COLUMN token_subject;
ALTER TABLE audit DROP COLUMN key_id;
