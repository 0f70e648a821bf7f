-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites payouts.

-- +goose Up
ALTER TABLE promotions
    ADD COLUMN IF NOT EXISTS rate_per_second integer NOT NULL DEFAULT 0 CHECK (rate_per_second >= 0),
    ADD COLUMN IF NOT EXISTS weight integer NOT NULL DEFAULT 1 CHECK (weight > 0),
    ADD COLUMN IF NOT EXISTS max_amount bigint NOT NULL DEFAULT 0 CHECK (max_amount >= 0),
    ADD COLUMN IF NOT EXISTS canary_targets bigint NOT NULL DEFAULT 0 CHECK (canary_targets >= 0),
    ADD COLUMN IF NOT EXISTS canary_max_failure_rate float8 NOT NULL DEFAULT 0
        CHECK (canary_max_failure_rate BETWEEN 0 AND 1),
    ADD COLUMN IF NOT EXISTS canary_dispatched bigint NOT NULL DEFAULT 0 CHECK (canary_dispatched >= 0),
    ADD COLUMN IF NOT EXISTS canary_judged boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS starts_at timestamptz,
    ADD COLUMN IF NOT EXISTS webhook_url text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS created_by text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS approved_by text NOT NULL DEFAULT '';

CREATE INDEX IF NOT EXISTS promotions_due ON promotions (starts_at, id)
    WHERE status = 'DRAFT' AND starts_at IS NOT NULL;

-- "Not found" has decided the row, and a second lookup follows at due_at.
ALTER TABLE payouts ADD COLUMN IF NOT EXISTS again boolean NOT NULL DEFAULT false;

-- Most rows are READY once, QUEUED once and then SUCCEEDED. These indexes hold
-- none of those:
--   payouts_again    rows with a second lookup
--   payouts_trouble  rows that operators list in a mostly SUCCEEDED promotion
--   payouts_failed   the same by error code, and the rows of a retry
--   payouts_back     READY rows that were dispatched before, which a canary does
--                    not block
-- A small table gets them at once. On a large table they are built concurrently,
-- which does not block writers, but waits for all running transactions of the
-- database. If a build fails it leaves an invalid index, which the next try
-- removes.
-- +goose StatementBegin
DO $$
DECLARE
    left_behind regclass;
BEGIN
    FOR left_behind IN
        SELECT indexrelid FROM pg_index WHERE indrelid = 'payouts'::regclass AND NOT indisvalid
            AND indexrelid IN (to_regclass('payouts_again'), to_regclass('payouts_trouble'),
                to_regclass('payouts_failed'), to_regclass('payouts_back'))
    LOOP
        EXECUTE format('DROP INDEX %s', left_behind);
    END LOOP;
    IF pg_relation_size('payouts') < 1 << 20 THEN
        CREATE INDEX IF NOT EXISTS payouts_again ON payouts (due_at) WHERE again;
        CREATE INDEX IF NOT EXISTS payouts_trouble ON payouts (promotion_id, state, target_id) WHERE state IN (2, 3, 5);
        CREATE INDEX IF NOT EXISTS payouts_failed ON payouts (promotion_id, error_code, target_id) WHERE state = 5;
        CREATE INDEX IF NOT EXISTS payouts_back ON payouts (promotion_id, due_at, target_id) WHERE state = 0 AND dispatch > 0;
    END IF;
END
$$;
-- +goose StatementEnd
CREATE INDEX CONCURRENTLY IF NOT EXISTS payouts_again ON payouts (due_at) WHERE again;
CREATE INDEX CONCURRENTLY IF NOT EXISTS payouts_trouble ON payouts (promotion_id, state, target_id) WHERE state IN (2, 3, 5);
CREATE INDEX CONCURRENTLY IF NOT EXISTS payouts_failed ON payouts (promotion_id, error_code, target_id) WHERE state = 5;
CREATE INDEX CONCURRENTLY IF NOT EXISTS payouts_back ON payouts (promotion_id, due_at, target_id) WHERE state = 0 AND dispatch > 0;

ALTER TABLE dead_letters
    ADD COLUMN IF NOT EXISTS status text NOT NULL DEFAULT 'OPEN' CHECK (status IN ('OPEN', 'REPLAYED', 'DISCARDED')),
    ADD COLUMN IF NOT EXISTS settled_at timestamptz,
    ADD COLUMN IF NOT EXISTS settled_by text NOT NULL DEFAULT '';
CREATE INDEX IF NOT EXISTS dead_letters_open ON dead_letters (id) WHERE status = 'OPEN';

-- Deliveries to webhooks; status is the HTTP status of the latest attempt. Only
-- DRAFTs are ever deleted, and a DRAFT has no deliveries.
CREATE TABLE IF NOT EXISTS webhooks (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    promotion_id bigint      NOT NULL,
    at           timestamptz NOT NULL,
    due_at       timestamptz NOT NULL,
    done_at      timestamptz,
    tries        integer     NOT NULL DEFAULT 0,
    status       integer     NOT NULL DEFAULT 0,
    event        text        NOT NULL,
    url          text        NOT NULL,
    detail       text        NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS webhooks_open ON webhooks (at, id) WHERE done_at IS NULL;

CREATE TABLE IF NOT EXISTS reconciliations (
    id     bigint      PRIMARY KEY,
    at     timestamptz NOT NULL,
    report bytea       NOT NULL
);

-- When the database was last restored from a backup; at most one row.
CREATE TABLE IF NOT EXISTS restore_mark (
    one boolean     PRIMARY KEY CHECK (one),
    at  timestamptz NOT NULL
);

-- +goose Down
DROP TABLE IF EXISTS restore_mark;
DROP TABLE IF EXISTS reconciliations;
DROP TABLE IF EXISTS webhooks;
ALTER TABLE dead_letters DROP COLUMN IF EXISTS settled_by, DROP COLUMN IF EXISTS settled_at, DROP COLUMN IF EXISTS status;
DROP INDEX IF EXISTS payouts_back, payouts_failed, payouts_trouble;
ALTER TABLE payouts DROP COLUMN IF EXISTS again;
ALTER TABLE promotions
    DROP COLUMN IF EXISTS approved_by, DROP COLUMN IF EXISTS created_by, DROP COLUMN IF EXISTS webhook_url,
    DROP COLUMN IF EXISTS starts_at, DROP COLUMN IF EXISTS canary_judged, DROP COLUMN IF EXISTS canary_dispatched,
    DROP COLUMN IF EXISTS canary_max_failure_rate, DROP COLUMN IF EXISTS canary_targets, DROP COLUMN IF EXISTS max_amount,
    DROP COLUMN IF EXISTS weight, DROP COLUMN IF EXISTS rate_per_second;
