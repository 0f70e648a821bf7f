-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- Who cancelled a coupon; NULL for a hold that ended, and for earlier versions.
ALTER TABLE coupons ADD COLUMN IF NOT EXISTS cancelled_by text;

-- The coupons of a template in a status other than ISSUED, by ticket. As in 00003, a small
-- table gets the index at once, and an invalid index of a failed try is removed.
-- +goose StatementBegin
DO $$
DECLARE
    left_behind regclass;
BEGIN
    FOR left_behind IN
        SELECT indexrelid FROM pg_index WHERE indrelid = 'coupons'::regclass AND NOT indisvalid
            AND indexrelid = to_regclass('coupons_listed')
    LOOP
        EXECUTE format('DROP INDEX %s', left_behind);
    END LOOP;
    IF pg_relation_size('coupons') < 1 << 20 THEN
        CREATE INDEX IF NOT EXISTS coupons_listed ON coupons (template_id, status, ticket, generation) WHERE status <> 0;
    END IF;
END
$$;
-- +goose StatementEnd
SET lock_timeout = '1h';
CREATE INDEX CONCURRENTLY IF NOT EXISTS coupons_listed ON coupons (template_id, status, ticket, generation) WHERE status <> 0;
RESET lock_timeout;

-- +goose Down
DROP INDEX IF EXISTS coupons_listed;
ALTER TABLE coupons DROP COLUMN IF EXISTS cancelled_by;
