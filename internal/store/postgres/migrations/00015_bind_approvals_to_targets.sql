-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites payouts.

-- +goose Up
-- Targets are saved in rounds. An approval covers the targets of all rounds so far,
-- and begins the next one: a target is approved if its approval_round is below
-- approved_rounds of its promotion. The rows that exist now are of round 0. The
-- default of new rows is 1, because an instance of the previous version may add some
-- to a promotion that is approved already.
ALTER TABLE payouts ADD COLUMN IF NOT EXISTS approval_round integer NOT NULL DEFAULT 0;
ALTER TABLE payouts ALTER COLUMN approval_round SET DEFAULT 1;

-- revision counts the changes that an approval is about. approval_round is the
-- round of new targets. approved_until is the latest due_at of a READY target when
-- the promotion was approved: a dispatch of approved targets reads no further. A
-- target without an amount was last saved in the round before unvalued_rounds.
ALTER TABLE promotions
    ADD COLUMN IF NOT EXISTS revision bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS approval_round integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS approved_rounds integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS approved_amount bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS approved_count bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS approved_until timestamptz,
    ADD COLUMN IF NOT EXISTS unvalued_rounds integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS rejected_by text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS reject_reason text NOT NULL DEFAULT '';

-- What was approved before stays approved: the targets of that time.
WITH approved AS MATERIALIZED (
    SELECT m.id FROM promotions m WHERE m.approved_by <> '' AND m.approval_round = 0 ORDER BY m.id FOR NO KEY UPDATE
)
UPDATE promotions m SET approval_round = 1, approved_rounds = 1,
    approved_amount = s.ready_amount + s.queued_amount + s.retrying_amount + s.unknown_amount + s.succeeded_amount
        + s.failed_amount + s.cancelled_amount,
    approved_count = s.ready + s.queued + s.retrying + s.unknown + s.succeeded + s.failed + s.cancelled,
    approved_until = (SELECT max(p.due_at) FROM payouts p WHERE p.promotion_id = m.id AND p.state = 0 AND p.state < 4)
FROM approved a JOIN summaries s ON s.promotion_id = a.id AND s.summary_id = 0
WHERE m.id = a.id;

-- A promotion that has ended is not searched for targets without an amount: one that
-- could have some needs an approval if it continues.
WITH unvalued AS MATERIALIZED (
    SELECT m.id FROM promotions m WHERE m.type = 'VOUCHER' AND m.unvalued_rounds = 0
        AND CASE WHEN m.status IN ('COMPLETED', 'CANCELLED') THEN m.amount = 0
            ELSE EXISTS (SELECT 1 FROM payouts p WHERE p.promotion_id = m.id AND p.amount = 0) END
    ORDER BY m.id FOR NO KEY UPDATE
)
UPDATE promotions m SET unvalued_rounds = 1 FROM unvalued u WHERE m.id = u.id;

CREATE INDEX IF NOT EXISTS promotions_awaiting ON promotions (id) WHERE status IN ('DRAFT', 'PAUSED') AND rejected_by = '';

-- The people who created or changed a promotion, or added targets to it. The rows outlive
-- the promotion: deleting it and creating it again forgets nobody.
CREATE TABLE IF NOT EXISTS promotion_authors (
    promotion_id bigint NOT NULL,
    author       text   NOT NULL,
    PRIMARY KEY (promotion_id, author)
);
INSERT INTO promotion_authors (promotion_id, author)
SELECT id, created_by FROM promotions WHERE created_by <> '' ON CONFLICT DO NOTHING;
INSERT INTO promotion_authors (promotion_id, author)
SELECT DISTINCT CASE WHEN subject ~ '^/v1/promotions/[0-9]{1,18}/targets$' THEN split_part(subject, '/', 4)::bigint
    WHEN subject ~ '^/v1/promotions/[0-9]{19}/targets$' THEN least(split_part(subject, '/', 4)::numeric, 9223372036854775807)::bigint ELSE 0 END, actor
FROM audit WHERE action = 'upload-targets' AND actor <> '' ON CONFLICT DO NOTHING;

-- Who sent an upload, how long its text was, and whether it ended early.
ALTER TABLE uploads
    ADD COLUMN IF NOT EXISTS created_by text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS bytes bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS interrupted boolean NOT NULL DEFAULT false;
CREATE INDEX IF NOT EXISTS uploads_listed ON uploads (promotion_id, id);
DROP INDEX IF EXISTS uploads_promotion;

-- The setting approval.above of each instance; NULL for an instance of the previous
-- version.
ALTER TABLE instances ADD COLUMN IF NOT EXISTS approval_above bigint;

-- +goose Down
ALTER TABLE instances DROP COLUMN IF EXISTS approval_above;
CREATE INDEX IF NOT EXISTS uploads_promotion ON uploads (promotion_id);
DROP INDEX IF EXISTS uploads_listed;
ALTER TABLE uploads DROP COLUMN IF EXISTS interrupted, DROP COLUMN IF EXISTS bytes, DROP COLUMN IF EXISTS created_by;
DROP TABLE IF EXISTS promotion_authors;
DROP INDEX IF EXISTS promotions_awaiting;
ALTER TABLE promotions
    DROP COLUMN IF EXISTS reject_reason, DROP COLUMN IF EXISTS rejected_by, DROP COLUMN IF EXISTS unvalued_rounds,
    DROP COLUMN IF EXISTS approved_until, DROP COLUMN IF EXISTS approved_count, DROP COLUMN IF EXISTS approved_amount,
    DROP COLUMN IF EXISTS approved_rounds, DROP COLUMN IF EXISTS approval_round, DROP COLUMN IF EXISTS revision;
ALTER TABLE payouts DROP COLUMN IF EXISTS approval_round;
