-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- base is the generation after which the present numbering of tickets begins. The
-- first load after this migration numbers every line again. floor replaces the end
-- offsets: they were recorded once all earlier records were settled.
--
-- Places are granted to the gate, which gives a ticket only for a granted place;
-- used counts the granted places whose ticket is settled. grants numbers the
-- changes of granted.
ALTER TABLE coupon_templates
    ADD COLUMN IF NOT EXISTS base  bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS floor bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS granted bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS used   bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS grants bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS ends_generation bigint NOT NULL DEFAULT 0,
    DROP CONSTRAINT IF EXISTS coupon_templates_promised;
ALTER TABLE coupon_templates ADD CONSTRAINT coupon_templates_promised
    CHECK (used >= 0 AND used <= granted AND live + granted - used <= total_quantity);
UPDATE coupon_templates SET base = generation, floor = greatest(floor, ends_generation);
ALTER TABLE coupon_templates
    DROP COLUMN IF EXISTS ends_generation,
    DROP COLUMN IF EXISTS ends,
    DROP COLUMN IF EXISTS moved_generation,
    DROP COLUMN IF EXISTS moved_settled,
    DROP COLUMN IF EXISTS moved_until;

-- +goose Down
ALTER TABLE coupon_templates
    ADD COLUMN IF NOT EXISTS ends_generation bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS moved_generation bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS moved_settled bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS moved_until bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS ends text NOT NULL DEFAULT '',
    DROP COLUMN IF EXISTS base,
    DROP COLUMN IF EXISTS floor,
    DROP COLUMN IF EXISTS granted,
    DROP COLUMN IF EXISTS used,
    DROP COLUMN IF EXISTS grants;
