-- +goose Up
ALTER TABLE promotions ADD COLUMN rate_per_second INTEGER NOT NULL DEFAULT 0 CHECK (rate_per_second >= 0);
ALTER TABLE promotions ADD COLUMN weight INTEGER NOT NULL DEFAULT 1 CHECK (weight > 0);
ALTER TABLE promotions ADD COLUMN max_amount INTEGER NOT NULL DEFAULT 0 CHECK (max_amount >= 0);
ALTER TABLE promotions ADD COLUMN canary_targets INTEGER NOT NULL DEFAULT 0 CHECK (canary_targets >= 0);
ALTER TABLE promotions ADD COLUMN canary_max_failure_rate REAL NOT NULL DEFAULT 0
    CHECK (canary_max_failure_rate BETWEEN 0 AND 1);
ALTER TABLE promotions ADD COLUMN canary_dispatched INTEGER NOT NULL DEFAULT 0 CHECK (canary_dispatched >= 0);
ALTER TABLE promotions ADD COLUMN canary_judged INTEGER NOT NULL DEFAULT 0 CHECK (canary_judged IN (0, 1));
ALTER TABLE promotions ADD COLUMN starts_at INTEGER;
ALTER TABLE promotions ADD COLUMN webhook_url TEXT NOT NULL DEFAULT '';
ALTER TABLE promotions ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE promotions ADD COLUMN approved_by TEXT NOT NULL DEFAULT '';

CREATE INDEX promotions_due ON promotions (starts_at, id) WHERE status = 'DRAFT' AND starts_at IS NOT NULL;

-- again: "not found" has decided the row, and a second lookup follows at due_at.
ALTER TABLE payouts ADD COLUMN again INTEGER NOT NULL DEFAULT 0;
CREATE INDEX payouts_lookups ON payouts (due_at) WHERE state = 3 OR again = 1;
DROP INDEX payouts_unknown;
-- Rare rows: RETRYING, UNKNOWN and FAILED, for lists and retries, and READY rows
-- that were dispatched before, which a canary does not block. This is one index,
-- because each index slows every write of a payout, even of rows not in it.
CREATE INDEX payouts_rare ON payouts (promotion_id, state, target_id, error_code)
    WHERE state = 2 OR state = 3 OR state = 5 OR (state = 0 AND dispatch > 0);

ALTER TABLE dead_letters ADD COLUMN status TEXT NOT NULL DEFAULT 'OPEN' CHECK (status IN ('OPEN', 'REPLAYED', 'DISCARDED'));
ALTER TABLE dead_letters ADD COLUMN settled_at INTEGER;
ALTER TABLE dead_letters ADD COLUMN settled_by TEXT NOT NULL DEFAULT '';
CREATE INDEX dead_letters_open ON dead_letters (id) WHERE status = 'OPEN';

-- Deliveries to webhooks; status is the HTTP status of the latest attempt.
CREATE TABLE webhooks (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    promotion_id INTEGER NOT NULL REFERENCES promotions (id) ON DELETE CASCADE,
    event        TEXT    NOT NULL,
    url          TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    tries        INTEGER NOT NULL DEFAULT 0,
    status       INTEGER NOT NULL DEFAULT 0,
    detail       TEXT    NOT NULL DEFAULT '',
    done_at      INTEGER
) STRICT;
CREATE INDEX webhooks_promotion ON webhooks (promotion_id);
CREATE INDEX webhooks_open ON webhooks (at, id) WHERE done_at IS NULL;

CREATE TABLE reconciliations (
    id     INTEGER PRIMARY KEY,
    report BLOB    NOT NULL,
    at     INTEGER NOT NULL
) STRICT;

-- When the database was last restored from a backup; at most one row.
CREATE TABLE restore_mark (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    at  INTEGER NOT NULL
) STRICT;

-- +goose Down
DROP TABLE restore_mark;
DROP TABLE reconciliations;
DROP TABLE webhooks;
DROP INDEX dead_letters_open;
ALTER TABLE dead_letters DROP COLUMN settled_by;
ALTER TABLE dead_letters DROP COLUMN settled_at;
ALTER TABLE dead_letters DROP COLUMN status;
DROP INDEX payouts_rare;
CREATE INDEX payouts_unknown ON payouts (due_at) WHERE state = 3;
DROP INDEX payouts_lookups;
ALTER TABLE payouts DROP COLUMN again;
DROP INDEX promotions_due;
ALTER TABLE promotions DROP COLUMN approved_by;
ALTER TABLE promotions DROP COLUMN created_by;
ALTER TABLE promotions DROP COLUMN webhook_url;
ALTER TABLE promotions DROP COLUMN starts_at;
ALTER TABLE promotions DROP COLUMN canary_judged;
ALTER TABLE promotions DROP COLUMN canary_dispatched;
ALTER TABLE promotions DROP COLUMN canary_max_failure_rate;
ALTER TABLE promotions DROP COLUMN canary_targets;
ALTER TABLE promotions DROP COLUMN max_amount;
ALTER TABLE promotions DROP COLUMN weight;
ALTER TABLE promotions DROP COLUMN rate_per_second;
