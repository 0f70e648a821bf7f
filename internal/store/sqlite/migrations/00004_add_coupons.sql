-- +goose Up
-- valid_for is in seconds; ends is JSON.
CREATE TABLE coupon_templates (
    id              INTEGER PRIMARY KEY CHECK (id > 0),
    name            TEXT    NOT NULL,
    total_quantity  INTEGER NOT NULL CHECK (total_quantity > 0),
    per_user_limit  INTEGER NOT NULL CHECK (per_user_limit > 0),
    opens_at        INTEGER,
    closes_at       INTEGER,
    valid_for       INTEGER NOT NULL CHECK (valid_for >= 0),
    mode            TEXT    NOT NULL CHECK (mode IN ('STREAM', 'KAFKA', 'SYNC')),
    reissue         INTEGER NOT NULL CHECK (reissue IN (0, 1)),
    when_redis_away TEXT    NOT NULL CHECK (when_redis_away IN ('DATABASE', 'WAIT')),
    draw_state      TEXT    NOT NULL CHECK (draw_state IN ('', 'OPEN', 'CLOSED', 'DONE')),
    draw_from       INTEGER,
    draw_seed       BLOB,
    draw_list       BLOB,
    created_at      INTEGER NOT NULL,
    generation      INTEGER NOT NULL DEFAULT 0 CHECK (generation >= 0),
    settled         INTEGER NOT NULL DEFAULT 0 CHECK (settled >= 0),
    version         INTEGER NOT NULL DEFAULT 0,
    live            INTEGER NOT NULL DEFAULT 0,
    issued_total    INTEGER NOT NULL DEFAULT 0,
    path            TEXT    NOT NULL DEFAULT 'GATE' CHECK (path IN ('GATE', 'DATABASE')),
    epoch           INTEGER NOT NULL DEFAULT 0,
    owner           TEXT    NOT NULL DEFAULT '',
    fence           INTEGER NOT NULL DEFAULT 0,
    ends_generation INTEGER NOT NULL DEFAULT 0,
    moved_generation INTEGER NOT NULL DEFAULT 0,
    moved_settled   INTEGER NOT NULL DEFAULT 0,
    moved_until     INTEGER NOT NULL DEFAULT 0,
    ends            TEXT    NOT NULL DEFAULT '',
    -- The last defense against issuing more coupons than the quantity.
    CHECK (live >= 0 AND live <= total_quantity),
    CHECK (issued_total >= live)
) STRICT;
CREATE INDEX coupon_templates_closes ON coupon_templates (closes_at);

-- slot is NULL if cancelling the coupon freed it. NULLs do not conflict, so the
-- unique slot enforces the limit per user. Its index also finds all coupons of a
-- user at a template.
CREATE TABLE coupons (
    id           INTEGER PRIMARY KEY CHECK (id > 0),
    code         TEXT    NOT NULL,
    template_id  INTEGER NOT NULL,
    user_id      TEXT    NOT NULL,
    generation   INTEGER NOT NULL,
    ticket       INTEGER NOT NULL CHECK (ticket > 0),
    slot         INTEGER CHECK (slot > 0),
    status       INTEGER NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),
    version      INTEGER NOT NULL,
    issued_at    INTEGER NOT NULL,
    used_at      INTEGER,
    cancelled_at INTEGER,
    expires_at   INTEGER,
    CHECK (slot IS NOT NULL OR status = 2)
) STRICT;
CREATE UNIQUE INDEX coupons_ticket ON coupons (template_id, ticket, generation);
CREATE UNIQUE INDEX coupons_slot ON coupons (template_id, user_id, slot);
CREATE UNIQUE INDEX coupons_code ON coupons (code);
CREATE INDEX coupons_version ON coupons (template_id, version);
CREATE INDEX coupons_user ON coupons (user_id, id);
CREATE INDEX coupons_expiry ON coupons (expires_at) WHERE status = 0 AND expires_at IS NOT NULL;

-- Admitted requests that were rejected.
CREATE TABLE coupon_rejections (
    template_id INTEGER NOT NULL,
    ticket      INTEGER NOT NULL CHECK (ticket > 0),
    generation  INTEGER NOT NULL,
    user_id     TEXT    NOT NULL,
    reason      TEXT    NOT NULL CHECK (reason <> ''),
    at          INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    PRIMARY KEY (template_id, ticket, generation)
) STRICT, WITHOUT ROWID;
CREATE INDEX coupon_rejections_version ON coupon_rejections (template_id, version);
CREATE INDEX coupon_rejections_user ON coupon_rejections (user_id, template_id);

CREATE TABLE coupon_entrants (
    template_id INTEGER NOT NULL,
    user_id     TEXT    NOT NULL,
    PRIMARY KEY (template_id, user_id)
) STRICT, WITHOUT ROWID;

-- Intervals in which a template refused every request, numbered from 1.
CREATE TABLE coupon_refusals (
    template_id INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    reason      TEXT    NOT NULL,
    since       INTEGER NOT NULL,
    until       INTEGER,
    PRIMARY KEY (template_id, number)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE coupon_refusals;
DROP TABLE coupon_entrants;
DROP TABLE coupon_rejections;
DROP TABLE coupons;
DROP TABLE coupon_templates;
