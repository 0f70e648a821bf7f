-- +goose Up
-- Targets are saved in rounds. An approval covers the targets of all rounds so far,
-- and begins the next one: a target is approved if its approval_round is below
-- approved_rounds of its promotion.
ALTER TABLE payouts ADD COLUMN approval_round INTEGER NOT NULL DEFAULT 0;

-- revision counts the changes that an approval is about. approval_round is the
-- round of new targets. approved_until is the latest due_at of a READY target when
-- the promotion was approved: a dispatch of approved targets reads no further. A
-- target without an amount was last saved in the round before unvalued_rounds.
ALTER TABLE promotions ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE promotions ADD COLUMN approval_round INTEGER NOT NULL DEFAULT 0;
ALTER TABLE promotions ADD COLUMN approved_rounds INTEGER NOT NULL DEFAULT 0;
ALTER TABLE promotions ADD COLUMN approved_amount INTEGER NOT NULL DEFAULT 0;
ALTER TABLE promotions ADD COLUMN approved_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE promotions ADD COLUMN approved_until INTEGER;
ALTER TABLE promotions ADD COLUMN unvalued_rounds INTEGER NOT NULL DEFAULT 0;
ALTER TABLE promotions ADD COLUMN rejected_by TEXT NOT NULL DEFAULT '';
ALTER TABLE promotions ADD COLUMN reject_reason TEXT NOT NULL DEFAULT '';

-- What was approved before stays approved: the targets of that time.
UPDATE promotions SET approval_round = 1, approved_rounds = 1,
    approved_amount = s.ready_amount + s.queued_amount + s.retrying_amount + s.unknown_amount + s.succeeded_amount
        + s.failed_amount + s.cancelled_amount,
    approved_count = s.ready + s.queued + s.retrying + s.unknown + s.succeeded + s.failed + s.cancelled,
    approved_until = (SELECT max(p.due_at) FROM payouts p WHERE p.promotion_id = s.promotion_id AND p.state = 0 AND p.state < 4)
FROM summaries s WHERE s.promotion_id = promotions.id AND s.summary_id = 0 AND promotions.approved_by <> '';
UPDATE promotions SET unvalued_rounds = 1
WHERE type = 'VOUCHER' AND EXISTS (SELECT 1 FROM payouts p WHERE p.promotion_id = promotions.id AND p.amount = 0);

CREATE INDEX promotions_awaiting ON promotions (id) WHERE status IN ('DRAFT', 'PAUSED') AND rejected_by = '';

-- The people who created or changed a promotion, or added targets to it. The rows outlive
-- the promotion: deleting it and creating it again forgets nobody.
CREATE TABLE promotion_authors (
    promotion_id INTEGER NOT NULL,
    author       TEXT    NOT NULL,
    PRIMARY KEY (promotion_id, author)
) STRICT, WITHOUT ROWID;
INSERT INTO promotion_authors (promotion_id, author) SELECT id, created_by FROM promotions WHERE created_by <> '';
INSERT OR IGNORE INTO promotion_authors (promotion_id, author)
SELECT DISTINCT CAST(substr(subject, 16, length(subject) - 23) AS INTEGER), actor FROM audit
WHERE action = 'upload-targets' AND subject GLOB '/v1/promotions/[0-9]*/targets' AND actor <> '';

-- Who sent an upload, how long its text was, and whether it ended early.
ALTER TABLE uploads ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE uploads ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE uploads ADD COLUMN interrupted INTEGER NOT NULL DEFAULT 0 CHECK (interrupted IN (0, 1));
CREATE INDEX uploads_listed ON uploads (promotion_id, id);
DROP INDEX uploads_promotion;

-- The setting approval.above of the instance.
ALTER TABLE instances ADD COLUMN approval_above INTEGER;

-- +goose Down
ALTER TABLE instances DROP COLUMN approval_above;
CREATE INDEX uploads_promotion ON uploads (promotion_id);
DROP INDEX uploads_listed;
ALTER TABLE uploads DROP COLUMN interrupted;
ALTER TABLE uploads DROP COLUMN bytes;
ALTER TABLE uploads DROP COLUMN created_by;
DROP TABLE promotion_authors;
DROP INDEX promotions_awaiting;
ALTER TABLE promotions DROP COLUMN reject_reason;
ALTER TABLE promotions DROP COLUMN rejected_by;
ALTER TABLE promotions DROP COLUMN unvalued_rounds;
ALTER TABLE promotions DROP COLUMN approved_until;
ALTER TABLE promotions DROP COLUMN approved_count;
ALTER TABLE promotions DROP COLUMN approved_amount;
ALTER TABLE promotions DROP COLUMN approved_rounds;
ALTER TABLE promotions DROP COLUMN approval_round;
ALTER TABLE promotions DROP COLUMN revision;
ALTER TABLE payouts DROP COLUMN approval_round;
