-- +goose Up
-- A quantity above approval.codes-above that waits for a second person, or 0, and who created
-- or changed the template or imported its codes: a JSON array, or empty. Nobody is known as
-- the author of an earlier template.
ALTER TABLE coupon_templates ADD COLUMN awaiting_quantity INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN authors TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE coupon_templates DROP COLUMN authors;
ALTER TABLE coupon_templates DROP COLUMN awaiting_quantity;
