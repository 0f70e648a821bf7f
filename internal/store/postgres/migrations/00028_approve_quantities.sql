-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- A quantity above approval.codes-above that waits for a second person, or 0, and who created
-- or changed the template or imported its codes: a JSON array, or empty. Nobody is known as
-- the author of an earlier template.
ALTER TABLE coupon_templates
    ADD COLUMN IF NOT EXISTS awaiting_quantity bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS authors text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE coupon_templates DROP COLUMN IF EXISTS authors, DROP COLUMN IF EXISTS awaiting_quantity;
