-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites payouts.

-- +goose Up
-- Every filter of a list of payouts has an index in the order of the list.
--   payouts_listed  by state. A payout is QUEUED between two other states, and
--                   a promotion has few QUEUED payouts at a time. payouts_open
--                   finds those, so that dispatching adds no entry here. Only
--                   a statement that repeats this condition can use this index. A
--                   statement that names its rows must never walk it.
--   payouts_code    by error code, alone or with a state. No payout that is paid
--                   at the first call has an entry.
-- They replace payouts_trouble and payouts_failed. As in 00003, a small table
-- gets them at once.
-- +goose StatementBegin
DO $$
DECLARE
    left_behind regclass;
BEGIN
    FOR left_behind IN
        SELECT indexrelid FROM pg_index WHERE indrelid = 'payouts'::regclass AND NOT indisvalid
            AND indexrelid IN (to_regclass('payouts_listed'), to_regclass('payouts_code'))
    LOOP
        EXECUTE format('DROP INDEX %s', left_behind);
    END LOOP;
    IF pg_relation_size('payouts') < 1 << 20 THEN
        CREATE INDEX IF NOT EXISTS payouts_listed ON payouts (promotion_id, state, target_id) WHERE state - 1 <> 0;
        CREATE INDEX IF NOT EXISTS payouts_code ON payouts (promotion_id, error_code, state, target_id) WHERE error_code <> '';
        DROP INDEX IF EXISTS payouts_trouble, payouts_failed;
    END IF;
END
$$;
-- +goose StatementEnd
-- A concurrent build waits for every older transaction, such as a backup. Only
-- other migrations and VACUUM wait for it, so it may take its time.
SET lock_timeout = '1h';
CREATE INDEX CONCURRENTLY IF NOT EXISTS payouts_listed ON payouts (promotion_id, state, target_id) WHERE state - 1 <> 0;
CREATE INDEX CONCURRENTLY IF NOT EXISTS payouts_code ON payouts (promotion_id, error_code, state, target_id) WHERE error_code <> '';
DROP INDEX CONCURRENTLY IF EXISTS payouts_trouble;
DROP INDEX CONCURRENTLY IF EXISTS payouts_failed;
RESET lock_timeout;

CREATE INDEX IF NOT EXISTS promotions_status ON promotions (status, id);

-- A list of dead letters can have each of three filters. One without a status
-- reads the three statuses one after the other.
CREATE INDEX IF NOT EXISTS dead_letters_status ON dead_letters (status, id);
CREATE INDEX IF NOT EXISTS dead_letters_source ON dead_letters (source, status, id);
CREATE INDEX IF NOT EXISTS dead_letters_reason ON dead_letters (reason, status, id);
CREATE INDEX IF NOT EXISTS dead_letters_source_reason ON dead_letters (source, reason, status, id);
DROP INDEX IF EXISTS dead_letters_open;

-- +goose Down
CREATE INDEX IF NOT EXISTS dead_letters_open ON dead_letters (id) WHERE status = 'OPEN';
DROP INDEX IF EXISTS dead_letters_source_reason, dead_letters_reason, dead_letters_source, dead_letters_status, promotions_status;
CREATE INDEX CONCURRENTLY IF NOT EXISTS payouts_trouble ON payouts (promotion_id, state, target_id) WHERE state IN (2, 3, 5);
CREATE INDEX CONCURRENTLY IF NOT EXISTS payouts_failed ON payouts (promotion_id, error_code, target_id) WHERE state = 5;
DROP INDEX CONCURRENTLY IF EXISTS payouts_code;
DROP INDEX CONCURRENTLY IF EXISTS payouts_listed;
