-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites coupon_entrants.

-- +goose Up
-- For the draws that a user entered. As in 00003, a small table gets it at once.
-- +goose StatementBegin
DO $$
DECLARE
    left_behind regclass;
BEGIN
    FOR left_behind IN
        SELECT indexrelid FROM pg_index WHERE indrelid = 'coupon_entrants'::regclass AND NOT indisvalid
            AND indexrelid = to_regclass('coupon_entrants_user')
    LOOP
        EXECUTE format('DROP INDEX %s', left_behind);
    END LOOP;
    IF pg_relation_size('coupon_entrants') < 1 << 20 THEN
        CREATE INDEX IF NOT EXISTS coupon_entrants_user ON coupon_entrants (user_id);
    END IF;
END
$$;
-- +goose StatementEnd
SET lock_timeout = '1h';
CREATE INDEX CONCURRENTLY IF NOT EXISTS coupon_entrants_user ON coupon_entrants (user_id);
RESET lock_timeout;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS coupon_entrants_user;
