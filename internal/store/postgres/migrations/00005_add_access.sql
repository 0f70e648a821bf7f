-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated.

-- +goose Up
-- API keys, without their secrets. last_used_at is in no index, so its updates
-- stay on their page (HOT).
CREATE TABLE IF NOT EXISTS api_keys (
    id           bigint      PRIMARY KEY CHECK (id > 0),
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz,
    hash         bytea       NOT NULL CHECK (octet_length(hash) = 32),
    name         text        NOT NULL,
    prefix       text        NOT NULL,
    role         text        NOT NULL,
    created_by   text        NOT NULL,
    revoked_by   text        NOT NULL DEFAULT '',
    CONSTRAINT api_keys_hash UNIQUE (hash)
) WITH (fillfactor = 50);

-- Who changed what. Each kind of query has an index in the order of its pages.
-- With the collation "C" an index finds texts by prefix. A line is written twice;
-- no index has the columns that its end writes.
CREATE TABLE IF NOT EXISTS audit (
    id         bigint      PRIMARY KEY CHECK (id > 0),
    at         timestamptz NOT NULL,
    ended_at   timestamptz,
    status     integer     NOT NULL DEFAULT 0,
    actor      text        COLLATE "C" NOT NULL,
    role       text        NOT NULL,
    action     text        COLLATE "C" NOT NULL,
    subject    text        COLLATE "C" NOT NULL,
    request_id text        NOT NULL,
    code       text        NOT NULL DEFAULT '',
    detail     text        NOT NULL
) WITH (fillfactor = 90);
CREATE INDEX IF NOT EXISTS audit_actor ON audit (actor, id);
CREATE INDEX IF NOT EXISTS audit_action ON audit (action, id);
CREATE INDEX IF NOT EXISTS audit_subject ON audit (subject, id);

-- Responses by idempotency key. answer is NULL until it is known. answer and
-- begun_at are in no index. Rows are deleted as fast as they are inserted.
CREATE TABLE IF NOT EXISTS idempotency_keys (
    key         bytea       PRIMARY KEY CHECK (octet_length(key) = 32),
    id          bigint      NOT NULL,
    first_at    timestamptz NOT NULL,
    begun_at    timestamptz NOT NULL,
    fingerprint bytea       NOT NULL CHECK (octet_length(fingerprint) = 32),
    answer      bytea
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX IF NOT EXISTS idempotency_keys_first ON idempotency_keys (first_at);

-- +goose Down
DROP TABLE IF EXISTS idempotency_keys, audit, api_keys;
