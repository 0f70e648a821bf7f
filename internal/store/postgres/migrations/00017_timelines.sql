-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites payouts.

-- +goose Up
-- UNKNOWN payouts of all promotions, oldest first. As in 00003, a small table gets
-- the index at once.
-- +goose StatementBegin
DO $$
DECLARE
    left_behind regclass;
BEGIN
    FOR left_behind IN
        SELECT indexrelid FROM pg_index WHERE indrelid = 'payouts'::regclass AND NOT indisvalid
            AND indexrelid = to_regclass('payouts_unknown_since')
    LOOP
        EXECUTE format('DROP INDEX %s', left_behind);
    END LOOP;
    IF pg_relation_size('payouts') < 1 << 20 THEN
        CREATE INDEX IF NOT EXISTS payouts_unknown_since ON payouts (updated_at, promotion_id, target_id) WHERE state = 3;
    END IF;
END
$$;
-- +goose StatementEnd
SET lock_timeout = '1h';
CREATE INDEX CONCURRENTLY IF NOT EXISTS payouts_unknown_since ON payouts (updated_at, promotion_id, target_id) WHERE state = 3;
RESET lock_timeout;

-- What a list of reconciliations shows; NULL for reports of earlier versions.
ALTER TABLE reconciliations
    ADD COLUMN IF NOT EXISTS checked bigint,
    ADD COLUMN IF NOT EXISTS drifts bigint,
    ADD COLUMN IF NOT EXISTS repaired bigint;

-- Whether an instance has reported that this one died.
ALTER TABLE instances ADD COLUMN IF NOT EXISTS death_reported boolean NOT NULL DEFAULT false;

-- Points of the timelines. A row counts what one instance saw within step seconds
-- from at, which is in seconds since 1970. All columns after instance are sums, so
-- adding rows gives the row of a longer step, whatever the order. Row 0 of a table is
-- the sum over all promotions or templates. waiting divided by samples is an average.
-- calls_0 to calls_27 count calls to the provider by their duration; see
-- rows.LatencyBounds.
CREATE TABLE IF NOT EXISTS promotion_points (
    promotion_id bigint NOT NULL,
    at           bigint NOT NULL,
    step         integer NOT NULL CHECK (step <> 0),
    instance     text    COLLATE "C" NOT NULL,
    succeeded    bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,
    retrying     bigint NOT NULL DEFAULT 0,
    unknown      bigint NOT NULL DEFAULT 0,
    call_millis  bigint NOT NULL DEFAULT 0,
    waiting      bigint NOT NULL DEFAULT 0,
    samples      bigint NOT NULL DEFAULT 0,
    calls_0 bigint NOT NULL DEFAULT 0, calls_1 bigint NOT NULL DEFAULT 0, calls_2 bigint NOT NULL DEFAULT 0,
    calls_3 bigint NOT NULL DEFAULT 0, calls_4 bigint NOT NULL DEFAULT 0, calls_5 bigint NOT NULL DEFAULT 0,
    calls_6 bigint NOT NULL DEFAULT 0, calls_7 bigint NOT NULL DEFAULT 0, calls_8 bigint NOT NULL DEFAULT 0,
    calls_9 bigint NOT NULL DEFAULT 0, calls_10 bigint NOT NULL DEFAULT 0, calls_11 bigint NOT NULL DEFAULT 0,
    calls_12 bigint NOT NULL DEFAULT 0, calls_13 bigint NOT NULL DEFAULT 0, calls_14 bigint NOT NULL DEFAULT 0,
    calls_15 bigint NOT NULL DEFAULT 0, calls_16 bigint NOT NULL DEFAULT 0, calls_17 bigint NOT NULL DEFAULT 0,
    calls_18 bigint NOT NULL DEFAULT 0, calls_19 bigint NOT NULL DEFAULT 0, calls_20 bigint NOT NULL DEFAULT 0,
    calls_21 bigint NOT NULL DEFAULT 0, calls_22 bigint NOT NULL DEFAULT 0, calls_23 bigint NOT NULL DEFAULT 0,
    calls_24 bigint NOT NULL DEFAULT 0, calls_25 bigint NOT NULL DEFAULT 0, calls_26 bigint NOT NULL DEFAULT 0,
    calls_27 bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (promotion_id, at, step, instance)
);
CREATE INDEX IF NOT EXISTS promotion_points_step ON promotion_points (step, at);

CREATE TABLE IF NOT EXISTS template_points (
    template_id bigint NOT NULL,
    at          bigint NOT NULL,
    step        integer NOT NULL CHECK (step <> 0),
    instance    text    COLLATE "C" NOT NULL,
    asked        bigint NOT NULL DEFAULT 0,
    issued       bigint NOT NULL DEFAULT 0,
    refused      bigint NOT NULL DEFAULT 0,
    waiting      bigint NOT NULL DEFAULT 0,
    samples      bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (template_id, at, step, instance)
);
CREATE INDEX IF NOT EXISTS template_points_step ON template_points (step, at);

-- +goose Down
DROP TABLE IF EXISTS template_points, promotion_points;
ALTER TABLE instances DROP COLUMN IF EXISTS death_reported;
ALTER TABLE reconciliations DROP COLUMN IF EXISTS repaired, DROP COLUMN IF EXISTS drifts, DROP COLUMN IF EXISTS checked;
DROP INDEX CONCURRENTLY IF EXISTS payouts_unknown_since;
