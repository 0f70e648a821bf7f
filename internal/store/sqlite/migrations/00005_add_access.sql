-- +goose Up
-- API keys, without their secrets.
CREATE TABLE api_keys (
    id           INTEGER PRIMARY KEY CHECK (id > 0),
    name         TEXT    NOT NULL,
    prefix       TEXT    NOT NULL,
    hash         BLOB    NOT NULL CHECK (length(hash) = 32),
    role         TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    created_by   TEXT    NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER,
    revoked_by   TEXT    NOT NULL DEFAULT ''
) STRICT;
CREATE UNIQUE INDEX api_keys_hash ON api_keys (hash);

-- Who changed what. Each kind of query has an index, which ends with the ID.
CREATE TABLE audit (
    id         INTEGER PRIMARY KEY CHECK (id > 0),
    at         INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    role       TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    request_id TEXT    NOT NULL,
    ended_at   INTEGER,
    status     INTEGER NOT NULL DEFAULT 0,
    code       TEXT    NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX audit_actor ON audit (actor);
CREATE INDEX audit_action ON audit (action);
CREATE INDEX audit_subject ON audit (subject);

-- Responses by idempotency key; answer is NULL until it is known.
CREATE TABLE idempotency_keys (
    key         BLOB    NOT NULL PRIMARY KEY CHECK (length(key) = 32),
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    id          INTEGER NOT NULL,
    first_at    INTEGER NOT NULL,
    begun_at    INTEGER NOT NULL,
    answer      BLOB
) STRICT;
CREATE INDEX idempotency_keys_first ON idempotency_keys (first_at);

-- +goose Down
DROP TABLE idempotency_keys;
DROP TABLE audit;
DROP TABLE api_keys;
