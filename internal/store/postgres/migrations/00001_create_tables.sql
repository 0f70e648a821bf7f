-- +goose Up
CREATE TABLE promotions (
    id                 bigint      PRIMARY KEY CHECK (id > 0),
    amount             bigint      NOT NULL CHECK (amount >= 0),
    expected_count     bigint,
    created_at         timestamptz NOT NULL,
    started_at         timestamptz,
    finished_at        timestamptz,
    last_dispatched_at timestamptz,
    max_retries        integer     NOT NULL CHECK (max_retries >= 0),
    registered         boolean     NOT NULL,
    closed             boolean     NOT NULL DEFAULT false,
    stream_gone        boolean     NOT NULL,
    type               text        NOT NULL CHECK (type IN ('POINT', 'VOUCHER')),
    status             text        NOT NULL CHECK (status IN ('DRAFT', 'RUNNING', 'PAUSED', 'COMPLETED', 'CANCELLED')),
    name               text        NOT NULL,
    voucher_code       text        NOT NULL,
    currency           text        NOT NULL,
    pause_reason       text        NOT NULL DEFAULT ''
) WITH (fillfactor = 20);

-- For PromotionActive, twice per second. It stays small with many final promotions.
-- Every dispatch writes last_dispatched_at, which is in no index, so these
-- updates stay on their page (HOT).
CREATE INDEX promotions_active ON promotions (id)
    WHERE status = 'RUNNING' OR (status = 'CANCELLED' AND finished_at IS NULL) OR NOT stream_gone;

-- Counts of each promotion (summary_id 0) and of each promotionSummaryId. The row
-- of the whole promotion is its lock: a transaction that moves counts locks it
-- before the others.
CREATE TABLE summaries (
    promotion_id     bigint NOT NULL REFERENCES promotions (id) ON DELETE CASCADE,
    summary_id       bigint NOT NULL CHECK (summary_id >= 0),
    ready            bigint NOT NULL DEFAULT 0 CHECK (ready >= 0),
    queued           bigint NOT NULL DEFAULT 0 CHECK (queued >= 0),
    retrying         bigint NOT NULL DEFAULT 0 CHECK (retrying >= 0),
    unknown          bigint NOT NULL DEFAULT 0 CHECK (unknown >= 0),
    succeeded        bigint NOT NULL DEFAULT 0 CHECK (succeeded >= 0),
    failed           bigint NOT NULL DEFAULT 0 CHECK (failed >= 0),
    cancelled        bigint NOT NULL DEFAULT 0 CHECK (cancelled >= 0),
    ready_amount     bigint NOT NULL DEFAULT 0 CHECK (ready_amount >= 0),
    queued_amount    bigint NOT NULL DEFAULT 0 CHECK (queued_amount >= 0),
    retrying_amount  bigint NOT NULL DEFAULT 0 CHECK (retrying_amount >= 0),
    unknown_amount   bigint NOT NULL DEFAULT 0 CHECK (unknown_amount >= 0),
    succeeded_amount bigint NOT NULL DEFAULT 0 CHECK (succeeded_amount >= 0),
    failed_amount    bigint NOT NULL DEFAULT 0 CHECK (failed_amount >= 0),
    cancelled_amount bigint NOT NULL DEFAULT 0 CHECK (cancelled_amount >= 0),
    attempts         bigint NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    PRIMARY KEY (promotion_id, summary_id),
    -- The sum of all amounts overflows first. It therefore refuses a batch whose
    -- amounts could overflow a single state later.
    CHECK (ready_amount + queued_amount + retrying_amount + unknown_amount
        + succeeded_amount + failed_amount + cancelled_amount >= 0)
) WITH (fillfactor = 20);

-- No foreign key to promotions: it would cost a lock per row. A transaction that
-- inserts locks the promotion's summary row, which has a foreign key.
CREATE TABLE payouts (
    promotion_id        bigint      NOT NULL,
    target_id           bigint      NOT NULL CHECK (target_id >= 0),
    summary_id          bigint      NOT NULL CHECK (summary_id >= 0),
    amount              bigint      NOT NULL CHECK (amount >= 0),
    due_at              timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    first_dispatched_at timestamptz,
    settle_from         timestamptz,
    looked_at           timestamptz, -- begin of the latest lookup that left the row UNKNOWN
    dispatch            integer     NOT NULL CHECK (dispatch >= 0),
    attempts            integer     NOT NULL CHECK (attempts >= 0),
    state               smallint    NOT NULL CHECK (state BETWEEN 0 AND 6),
    maybe_called        boolean     NOT NULL,
    user_id             text        NOT NULL,
    voucher_code        text        NOT NULL,
    transaction_key     text        NOT NULL,
    error_code          text        NOT NULL,
    error_message       text        NOT NULL,
    PRIMARY KEY (promotion_id, target_id),
    CHECK (state <> 3 OR (maybe_called AND settle_from IS NOT NULL)),
    CHECK (state <> 1 OR (dispatch > 0 AND first_dispatched_at IS NOT NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX payouts_open ON payouts (promotion_id, state, due_at, target_id) WHERE state < 4;
CREATE INDEX payouts_unknown ON payouts (due_at) WHERE state = 3;

-- The key makes a repeated write of the same attempts harmless.
CREATE TABLE attempts (
    promotion_id bigint      NOT NULL,
    target_id    bigint      NOT NULL,
    at           timestamptz NOT NULL,
    dispatch     integer     NOT NULL,
    number       smallint    NOT NULL,
    class        text        NOT NULL,
    code         text        NOT NULL,
    message      text        NOT NULL,
    PRIMARY KEY (promotion_id, target_id, at, dispatch, number, class, code)
);

CREATE TABLE dead_letters (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source    text        NOT NULL,
    part      integer     NOT NULL,
    off       text        NOT NULL,
    key       bytea,
    value     bytea,
    reason    text        NOT NULL,
    detail    text        NOT NULL,
    at        timestamptz NOT NULL,
    UNIQUE (source, part, off)
);

CREATE TABLE kafka_offsets (
    topic text    NOT NULL,
    part  integer NOT NULL,
    next  bigint  NOT NULL CHECK (next >= 0),
    PRIMARY KEY (topic, part)
) WITH (fillfactor = 20);

CREATE TABLE uploads (
    id           bigint      PRIMARY KEY,
    promotion_id bigint      NOT NULL REFERENCES promotions (id) ON DELETE CASCADE,
    leased_until timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    finished_at  timestamptz,
    accepted     bigint      NOT NULL DEFAULT 0,
    duplicates   bigint      NOT NULL DEFAULT 0,
    conflicts    bigint      NOT NULL DEFAULT 0,
    rejected     bigint      NOT NULL DEFAULT 0,
    amount       bigint      NOT NULL DEFAULT 0
);
CREATE INDEX uploads_promotion ON uploads (promotion_id);

CREATE TABLE upload_errors (
    upload_id bigint NOT NULL REFERENCES uploads (id) ON DELETE CASCADE,
    line      bigint NOT NULL,
    code      text   NOT NULL,
    detail    text   NOT NULL,
    PRIMARY KEY (upload_id, line)
);

CREATE TABLE leases (
    name  text        PRIMARY KEY,
    owner text        NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 20);

-- +goose Down
DROP TABLE leases, upload_errors, uploads, kafka_offsets, dead_letters, attempts, payouts, summaries, promotions;
