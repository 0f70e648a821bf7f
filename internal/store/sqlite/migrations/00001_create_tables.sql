-- +goose Up
-- Times are in microseconds since 1970, UTC; NULL is no time. STRICT refuses sums
-- that exceed 63 bits, because they would become floating point.
CREATE TABLE promotions (
    id                 INTEGER PRIMARY KEY CHECK (id > 0),
    name               TEXT    NOT NULL,
    type               TEXT    NOT NULL CHECK (type IN ('POINT', 'VOUCHER')),
    status             TEXT    NOT NULL CHECK (status IN ('DRAFT', 'RUNNING', 'PAUSED', 'COMPLETED', 'CANCELLED')),
    amount             INTEGER NOT NULL CHECK (amount >= 0),
    voucher_code       TEXT    NOT NULL,
    currency           TEXT    NOT NULL,
    max_retries        INTEGER NOT NULL CHECK (max_retries >= 0),
    registered         INTEGER NOT NULL CHECK (registered IN (0, 1)),
    expected_count     INTEGER,
    closed             INTEGER NOT NULL DEFAULT 0 CHECK (closed IN (0, 1)),
    pause_reason       TEXT    NOT NULL DEFAULT '',
    created_at         INTEGER NOT NULL,
    started_at         INTEGER,
    finished_at        INTEGER,
    last_dispatched_at INTEGER,
    stream_gone        INTEGER NOT NULL CHECK (stream_gone IN (0, 1))
) STRICT;

-- For PromotionActive, twice per second. It stays small with many final promotions.
CREATE INDEX promotions_active ON promotions (id)
    WHERE status = 'RUNNING' OR (status = 'CANCELLED' AND finished_at IS NULL) OR stream_gone = 0;

-- Counts of each promotion (summary_id 0) and of each promotionSummaryId.
CREATE TABLE summaries (
    promotion_id     INTEGER NOT NULL REFERENCES promotions (id) ON DELETE CASCADE,
    summary_id       INTEGER NOT NULL CHECK (summary_id >= 0),
    ready            INTEGER NOT NULL DEFAULT 0 CHECK (ready >= 0),
    queued           INTEGER NOT NULL DEFAULT 0 CHECK (queued >= 0),
    retrying         INTEGER NOT NULL DEFAULT 0 CHECK (retrying >= 0),
    unknown          INTEGER NOT NULL DEFAULT 0 CHECK (unknown >= 0),
    succeeded        INTEGER NOT NULL DEFAULT 0 CHECK (succeeded >= 0),
    failed           INTEGER NOT NULL DEFAULT 0 CHECK (failed >= 0),
    cancelled        INTEGER NOT NULL DEFAULT 0 CHECK (cancelled >= 0),
    ready_amount     INTEGER NOT NULL DEFAULT 0 CHECK (ready_amount >= 0),
    queued_amount    INTEGER NOT NULL DEFAULT 0 CHECK (queued_amount >= 0),
    retrying_amount  INTEGER NOT NULL DEFAULT 0 CHECK (retrying_amount >= 0),
    unknown_amount   INTEGER NOT NULL DEFAULT 0 CHECK (unknown_amount >= 0),
    succeeded_amount INTEGER NOT NULL DEFAULT 0 CHECK (succeeded_amount >= 0),
    failed_amount    INTEGER NOT NULL DEFAULT 0 CHECK (failed_amount >= 0),
    cancelled_amount INTEGER NOT NULL DEFAULT 0 CHECK (cancelled_amount >= 0),
    attempts         INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    PRIMARY KEY (promotion_id, summary_id),
    -- The sum of all amounts overflows first. It therefore refuses a batch whose
    -- amounts could overflow a single state later.
    CHECK (typeof(ready_amount + queued_amount + retrying_amount + unknown_amount
        + succeeded_amount + failed_amount + cancelled_amount) = 'integer')
) STRICT, WITHOUT ROWID;

CREATE TABLE payouts (
    promotion_id        INTEGER NOT NULL,
    target_id           INTEGER NOT NULL CHECK (target_id >= 0),
    summary_id          INTEGER NOT NULL CHECK (summary_id >= 0),
    user_id             TEXT    NOT NULL,
    amount              INTEGER NOT NULL CHECK (amount >= 0),
    voucher_code        TEXT    NOT NULL,
    state               INTEGER NOT NULL CHECK (state BETWEEN 0 AND 6),
    dispatch            INTEGER NOT NULL CHECK (dispatch >= 0),
    attempts            INTEGER NOT NULL CHECK (attempts >= 0),
    maybe_called        INTEGER NOT NULL CHECK (maybe_called IN (0, 1)),
    due_at              INTEGER NOT NULL,
    first_dispatched_at INTEGER,
    settle_from         INTEGER,
    looked_at           INTEGER, -- begin of the latest lookup that left the row UNKNOWN
    transaction_key     TEXT    NOT NULL,
    error_code          TEXT    NOT NULL,
    error_message       TEXT    NOT NULL,
    updated_at          INTEGER NOT NULL,
    PRIMARY KEY (promotion_id, target_id),
    CHECK (state <> 3 OR (maybe_called AND settle_from IS NOT NULL)),
    CHECK (state <> 1 OR (dispatch > 0 AND first_dispatched_at IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX payouts_open ON payouts (promotion_id, state, due_at, target_id) WHERE state < 4;
CREATE INDEX payouts_unknown ON payouts (due_at) WHERE state = 3;

-- The key makes a repeated write of the same attempts harmless.
CREATE TABLE attempts (
    promotion_id INTEGER NOT NULL,
    target_id    INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    dispatch     INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    class        TEXT    NOT NULL,
    code         TEXT    NOT NULL,
    message      TEXT    NOT NULL,
    PRIMARY KEY (promotion_id, target_id, at, dispatch, number, class, code)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letters (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT    NOT NULL,
    part   INTEGER NOT NULL,
    off    TEXT    NOT NULL,
    key    BLOB,
    value  BLOB,
    reason TEXT    NOT NULL,
    detail TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    UNIQUE (source, part, off)
) STRICT;

CREATE TABLE kafka_offsets (
    topic TEXT    NOT NULL,
    part  INTEGER NOT NULL,
    next  INTEGER NOT NULL CHECK (next >= 0),
    PRIMARY KEY (topic, part)
) STRICT, WITHOUT ROWID;

CREATE TABLE uploads (
    id           INTEGER PRIMARY KEY,
    promotion_id INTEGER NOT NULL REFERENCES promotions (id) ON DELETE CASCADE,
    leased_until INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    finished_at  INTEGER,
    accepted     INTEGER NOT NULL DEFAULT 0,
    duplicates   INTEGER NOT NULL DEFAULT 0,
    conflicts    INTEGER NOT NULL DEFAULT 0,
    rejected     INTEGER NOT NULL DEFAULT 0,
    amount       INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX uploads_promotion ON uploads (promotion_id);

CREATE TABLE upload_errors (
    upload_id INTEGER NOT NULL REFERENCES uploads (id) ON DELETE CASCADE,
    line      INTEGER NOT NULL,
    code      TEXT    NOT NULL,
    detail    TEXT    NOT NULL,
    PRIMARY KEY (upload_id, line)
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
    name  TEXT    PRIMARY KEY,
    owner TEXT    NOT NULL,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE leases;
DROP TABLE upload_errors;
DROP TABLE uploads;
DROP TABLE kafka_offsets;
DROP TABLE dead_letters;
DROP TABLE attempts;
DROP TABLE payouts;
DROP TABLE summaries;
DROP TABLE promotions;
