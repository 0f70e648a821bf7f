-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- metadata is a JSON object of strings, or empty. search is what a search looks
-- through, in lower case; NULL, as the previous version leaves it, stands for name
-- and ID. version counts the changes of the settings.
ALTER TABLE promotions ADD COLUMN IF NOT EXISTS metadata text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS search text,
    ADD COLUMN IF NOT EXISTS version bigint NOT NULL DEFAULT 1;
ALTER TABLE coupon_templates ADD COLUMN IF NOT EXISTS metadata text NOT NULL DEFAULT '';

-- For the orders and filters of the list of promotions. No dispatch writes these
-- columns.
CREATE INDEX IF NOT EXISTS promotions_created ON promotions (created_at, id);
CREATE INDEX IF NOT EXISTS promotions_name ON promotions (name COLLATE "C", id);
CREATE INDEX IF NOT EXISTS promotions_creator ON promotions (created_by, id);

-- +goose Down
DROP INDEX IF EXISTS promotions_creator, promotions_name, promotions_created;
ALTER TABLE coupon_templates DROP COLUMN IF EXISTS metadata;
ALTER TABLE promotions DROP COLUMN IF EXISTS version, DROP COLUMN IF EXISTS search, DROP COLUMN IF EXISTS metadata;
