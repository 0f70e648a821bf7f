-- +goose Up
-- base is the generation after which the present numbering of tickets begins. The
-- first load after this migration numbers every line again. floor replaces the end
-- offsets: they were recorded once all earlier records were settled.
ALTER TABLE coupon_templates ADD COLUMN base INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN floor INTEGER NOT NULL DEFAULT 0;
-- Places are granted to the gate, which gives a ticket only for a granted place;
-- used counts the granted places whose ticket is settled. grants numbers the
-- changes of granted.
ALTER TABLE coupon_templates ADD COLUMN granted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN grants INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN used INTEGER NOT NULL DEFAULT 0
    CHECK (used >= 0 AND used <= granted AND live + granted - used <= total_quantity);
UPDATE coupon_templates SET base = generation, floor = ends_generation;
ALTER TABLE coupon_templates DROP COLUMN ends_generation;
ALTER TABLE coupon_templates DROP COLUMN ends;
ALTER TABLE coupon_templates DROP COLUMN moved_generation;
ALTER TABLE coupon_templates DROP COLUMN moved_settled;
ALTER TABLE coupon_templates DROP COLUMN moved_until;

-- +goose Down
ALTER TABLE coupon_templates ADD COLUMN ends_generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN moved_generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN moved_settled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN moved_until INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN ends TEXT NOT NULL DEFAULT '';
ALTER TABLE coupon_templates DROP COLUMN base;
ALTER TABLE coupon_templates DROP COLUMN floor;
ALTER TABLE coupon_templates DROP COLUMN used;
ALTER TABLE coupon_templates DROP COLUMN grants;
ALTER TABLE coupon_templates DROP COLUMN granted;
