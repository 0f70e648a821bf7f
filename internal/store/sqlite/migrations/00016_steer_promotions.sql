-- +goose Up
-- metadata is a JSON object of strings, or empty. search is what a search looks
-- through, in lower case; NULL, as the previous version leaves it, stands for name
-- and ID. version counts the changes of the settings.
ALTER TABLE promotions ADD COLUMN metadata TEXT NOT NULL DEFAULT '';
ALTER TABLE promotions ADD COLUMN search TEXT;
ALTER TABLE promotions ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE coupon_templates ADD COLUMN metadata TEXT NOT NULL DEFAULT '';

-- For the orders and filters of the list of promotions.
CREATE INDEX promotions_created ON promotions (created_at, id);
CREATE INDEX promotions_name ON promotions (name, id);
CREATE INDEX promotions_creator ON promotions (created_by, id);

-- +goose Down
DROP INDEX promotions_creator;
DROP INDEX promotions_name;
DROP INDEX promotions_created;
ALTER TABLE coupon_templates DROP COLUMN metadata;
ALTER TABLE promotions DROP COLUMN version;
ALTER TABLE promotions DROP COLUMN search;
ALTER TABLE promotions DROP COLUMN metadata;
