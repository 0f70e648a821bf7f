-- +goose Up
-- How long a new coupon is held, in seconds; 0 means not at all.
ALTER TABLE coupon_templates ADD COLUMN hold_seconds INTEGER NOT NULL DEFAULT 0;

-- How codes are generated; length 0 means 26 characters with 130 random bits.
ALTER TABLE coupon_templates ADD COLUMN code_prefix TEXT NOT NULL DEFAULT '';
ALTER TABLE coupon_templates ADD COLUMN code_length INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN code_alphabet TEXT NOT NULL DEFAULT '';

-- Status 4 is HELD. cancel_reason is empty if a caller cancelled the coupon.
-- SQLite cannot change the CHECK of a column, so the table is copied.
ALTER TABLE coupons RENAME TO coupons_before;
CREATE TABLE coupons (
    id            INTEGER PRIMARY KEY CHECK (id > 0),
    code          TEXT    NOT NULL,
    template_id   INTEGER NOT NULL,
    user_id       TEXT    NOT NULL,
    generation    INTEGER NOT NULL,
    ticket        INTEGER NOT NULL CHECK (ticket > 0),
    slot          INTEGER CHECK (slot > 0),
    status        INTEGER NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 4),
    version       INTEGER NOT NULL,
    issued_at     INTEGER NOT NULL,
    used_at       INTEGER,
    cancelled_at  INTEGER,
    expires_at    INTEGER,
    held_until    INTEGER CHECK (held_until IS NOT NULL OR status <> 4),
    cancel_reason TEXT    NOT NULL DEFAULT '',
    CHECK (slot IS NOT NULL OR status = 2)
) STRICT;
INSERT INTO coupons (id, code, template_id, user_id, generation, ticket, slot, status, version, issued_at, used_at, cancelled_at, expires_at)
SELECT id, code, template_id, user_id, generation, ticket, slot, status, version, issued_at, used_at, cancelled_at, expires_at
FROM coupons_before;
DROP TABLE coupons_before;
CREATE UNIQUE INDEX coupons_ticket ON coupons (template_id, ticket, generation);
CREATE UNIQUE INDEX coupons_slot ON coupons (template_id, user_id, slot);
-- A code is unique within its template.
CREATE UNIQUE INDEX coupons_code ON coupons (code, template_id);
CREATE INDEX coupons_version ON coupons (template_id, version);
CREATE INDEX coupons_user ON coupons (user_id, id);
CREATE INDEX coupons_expiry ON coupons (expires_at) WHERE status = 0 AND expires_at IS NOT NULL;
CREATE INDEX coupons_held ON coupons (template_id, held_until) WHERE status = 4;

-- +goose Down
ALTER TABLE coupons RENAME TO coupons_before;
CREATE TABLE coupons (
    id            INTEGER PRIMARY KEY CHECK (id > 0),
    code          TEXT    NOT NULL,
    template_id   INTEGER NOT NULL,
    user_id       TEXT    NOT NULL,
    generation    INTEGER NOT NULL,
    ticket        INTEGER NOT NULL CHECK (ticket > 0),
    slot          INTEGER CHECK (slot > 0),
    status        INTEGER NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),
    version       INTEGER NOT NULL,
    issued_at     INTEGER NOT NULL,
    used_at       INTEGER,
    cancelled_at  INTEGER,
    expires_at    INTEGER,
    CHECK (slot IS NOT NULL OR status = 2)
) STRICT;
INSERT INTO coupons (id, code, template_id, user_id, generation, ticket, slot, status, version, issued_at, used_at, cancelled_at, expires_at)
SELECT id, code, template_id, user_id, generation, ticket, slot, CASE status WHEN 4 THEN 0 ELSE status END, version, issued_at, used_at, cancelled_at, expires_at
FROM coupons_before;
DROP TABLE coupons_before;
CREATE UNIQUE INDEX coupons_ticket ON coupons (template_id, ticket, generation);
CREATE UNIQUE INDEX coupons_slot ON coupons (template_id, user_id, slot);
CREATE UNIQUE INDEX coupons_code ON coupons (code);
CREATE INDEX coupons_version ON coupons (template_id, version);
CREATE INDEX coupons_user ON coupons (user_id, id);
CREATE INDEX coupons_expiry ON coupons (expires_at) WHERE status = 0 AND expires_at IS NOT NULL;
ALTER TABLE coupon_templates DROP COLUMN hold_seconds;
ALTER TABLE coupon_templates DROP COLUMN code_prefix;
ALTER TABLE coupon_templates DROP COLUMN code_length;
ALTER TABLE coupon_templates DROP COLUMN code_alphabet;
