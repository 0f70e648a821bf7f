-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- How long a new coupon is held, in seconds; 0 means not at all.
ALTER TABLE coupon_templates ADD COLUMN IF NOT EXISTS hold_seconds bigint NOT NULL DEFAULT 0;

-- How codes are generated; length 0 means 26 characters with 130 random bits.
ALTER TABLE coupon_templates
    ADD COLUMN IF NOT EXISTS code_prefix   text    NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS code_length   integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS code_alphabet text    NOT NULL DEFAULT '';

-- Status 4 is HELD. cancel_reason is empty if a caller cancelled the coupon.
ALTER TABLE coupons
    ADD COLUMN IF NOT EXISTS held_until    timestamptz,
    ADD COLUMN IF NOT EXISTS cancel_reason text NOT NULL DEFAULT '';
ALTER TABLE coupons
    DROP CONSTRAINT IF EXISTS coupons_status_check,
    DROP CONSTRAINT IF EXISTS coupons_status,
    ADD CONSTRAINT coupons_status CHECK (status BETWEEN 0 AND 4 AND (status <> 4 OR held_until IS NOT NULL)) NOT VALID;
ALTER TABLE coupons VALIDATE CONSTRAINT coupons_status;

-- For the ends of holds. A code is unique within its template. As in 00003, a small
-- table gets the indexes at once, and an invalid index of a failed try is removed.
-- +goose StatementBegin
DO $$
DECLARE
    left_behind regclass;
BEGIN
    FOR left_behind IN
        SELECT indexrelid FROM pg_index WHERE indrelid = 'coupons'::regclass AND NOT indisvalid
            AND indexrelid IN (to_regclass('coupons_held'), to_regclass('coupons_code_of_template'))
    LOOP
        EXECUTE format('DROP INDEX %s', left_behind);
    END LOOP;
    IF pg_relation_size('coupons') < 1 << 20 THEN
        CREATE INDEX IF NOT EXISTS coupons_held ON coupons (template_id, held_until) WHERE status = 4;
        CREATE UNIQUE INDEX IF NOT EXISTS coupons_code_of_template ON coupons (code, template_id);
    END IF;
END
$$;
-- +goose StatementEnd
SET lock_timeout = '1h';
CREATE INDEX CONCURRENTLY IF NOT EXISTS coupons_held ON coupons (template_id, held_until) WHERE status = 4;
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS coupons_code_of_template ON coupons (code, template_id);
RESET lock_timeout;
ALTER TABLE coupons DROP CONSTRAINT IF EXISTS coupons_code;

-- +goose Down
ALTER TABLE coupons DROP CONSTRAINT IF EXISTS coupons_code, ADD CONSTRAINT coupons_code UNIQUE (code);
DROP INDEX IF EXISTS coupons_code_of_template;
ALTER TABLE coupon_templates
    DROP COLUMN IF EXISTS code_prefix,
    DROP COLUMN IF EXISTS code_length,
    DROP COLUMN IF EXISTS code_alphabet;
DROP INDEX IF EXISTS coupons_held;
UPDATE coupons SET status = 0 WHERE status = 4;
ALTER TABLE coupons
    DROP CONSTRAINT IF EXISTS coupons_status,
    DROP CONSTRAINT IF EXISTS coupons_status_check,
    ADD CONSTRAINT coupons_status_check CHECK (status BETWEEN 0 AND 3),
    DROP COLUMN IF EXISTS held_until,
    DROP COLUMN IF EXISTS cancel_reason;
ALTER TABLE coupon_templates DROP COLUMN IF EXISTS hold_seconds;
