-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated.

-- +goose Up
-- The row of a template is its lock: every transaction that issues, cancels or
-- changes anything locks it first. The columns that every batch writes (settled,
-- version, live, …) are in no index, so these updates stay on their page (HOT).
-- valid_for is in seconds; ends is JSON.
CREATE TABLE IF NOT EXISTS coupon_templates (
    id              bigint      PRIMARY KEY CHECK (id > 0),
    total_quantity  bigint      NOT NULL CHECK (total_quantity > 0),
    opens_at        timestamptz,
    closes_at       timestamptz,
    valid_for       bigint      NOT NULL CHECK (valid_for >= 0),
    draw_from       timestamptz,
    created_at      timestamptz NOT NULL,
    generation      bigint      NOT NULL DEFAULT 0 CHECK (generation >= 0),
    settled         bigint      NOT NULL DEFAULT 0 CHECK (settled >= 0),
    version         bigint      NOT NULL DEFAULT 0,
    live            bigint      NOT NULL DEFAULT 0,
    issued_total    bigint      NOT NULL DEFAULT 0,
    epoch           bigint      NOT NULL DEFAULT 0,
    fence           bigint      NOT NULL DEFAULT 0,
    ends_generation bigint      NOT NULL DEFAULT 0,
    moved_generation bigint      NOT NULL DEFAULT 0,
    moved_settled   bigint      NOT NULL DEFAULT 0,
    moved_until     bigint      NOT NULL DEFAULT 0,
    per_user_limit  integer     NOT NULL CHECK (per_user_limit > 0),
    reissue         boolean     NOT NULL,
    mode            text        NOT NULL CHECK (mode IN ('STREAM', 'KAFKA', 'SYNC')),
    when_redis_away text        NOT NULL CHECK (when_redis_away IN ('DATABASE', 'WAIT')),
    path            text        NOT NULL DEFAULT 'GATE' CHECK (path IN ('GATE', 'DATABASE')),
    draw_state      text        NOT NULL CHECK (draw_state IN ('', 'OPEN', 'CLOSED', 'DONE')),
    owner           text        NOT NULL DEFAULT '',
    name            text        NOT NULL,
    ends            text        NOT NULL DEFAULT '',
    draw_seed       bytea,
    draw_list       bytea,
    -- The last defense against issuing more coupons than the quantity.
    CHECK (live >= 0 AND live <= total_quantity),
    CHECK (issued_total >= live)
) WITH (fillfactor = 20);

-- For TemplateActive, twice per second. It stays small with many closed templates.
CREATE INDEX IF NOT EXISTS coupon_templates_closes ON coupon_templates (closes_at);

-- No foreign key: it would cost a lock per row. A transaction that inserts locks
-- the row of the template. slot is NULL if cancelling the coupon freed it. NULLs
-- do not conflict, so the last constraint enforces the limit per user. Its index
-- also finds all coupons of a user at a template.
CREATE TABLE IF NOT EXISTS coupons (
    id           bigint      PRIMARY KEY CHECK (id > 0),
    template_id  bigint      NOT NULL,
    generation   bigint      NOT NULL,
    ticket       bigint      NOT NULL CHECK (ticket > 0),
    version      bigint      NOT NULL,
    issued_at    timestamptz NOT NULL,
    used_at      timestamptz,
    cancelled_at timestamptz,
    expires_at   timestamptz,
    slot         integer     CHECK (slot > 0),
    status       smallint    NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),
    code         text        COLLATE "C" NOT NULL,
    user_id      text        COLLATE "C" NOT NULL,
    CHECK (slot IS NOT NULL OR status = 2),
    CONSTRAINT coupons_ticket UNIQUE (template_id, ticket, generation),
    CONSTRAINT coupons_slot UNIQUE (template_id, user_id, slot),
    CONSTRAINT coupons_code UNIQUE (code)
);
CREATE INDEX IF NOT EXISTS coupons_version ON coupons (template_id, version);
CREATE INDEX IF NOT EXISTS coupons_user ON coupons (user_id, id);
CREATE INDEX IF NOT EXISTS coupons_expiry ON coupons (expires_at) WHERE status = 0 AND expires_at IS NOT NULL;

-- Admitted requests that were rejected. The lock of the template makes sure that
-- no ticket is both here and in coupons.
CREATE TABLE IF NOT EXISTS coupon_rejections (
    template_id bigint      NOT NULL,
    ticket      bigint      NOT NULL CHECK (ticket > 0),
    generation  bigint      NOT NULL,
    version     bigint      NOT NULL,
    at          timestamptz NOT NULL,
    user_id     text        COLLATE "C" NOT NULL,
    reason      text        NOT NULL CHECK (reason <> ''),
    PRIMARY KEY (template_id, ticket, generation)
);
CREATE INDEX IF NOT EXISTS coupon_rejections_version ON coupon_rejections (template_id, version);
CREATE INDEX IF NOT EXISTS coupon_rejections_user ON coupon_rejections (user_id, template_id);

CREATE TABLE IF NOT EXISTS coupon_entrants (
    template_id bigint NOT NULL,
    user_id     text   COLLATE "C" NOT NULL,
    PRIMARY KEY (template_id, user_id)
);

-- Intervals in which a template refused every request, numbered from 1.
CREATE TABLE IF NOT EXISTS coupon_refusals (
    template_id bigint      NOT NULL,
    number      bigint      NOT NULL,
    since       timestamptz NOT NULL,
    until       timestamptz,
    reason      text        NOT NULL,
    PRIMARY KEY (template_id, number)
);

-- +goose Down
DROP TABLE IF EXISTS coupon_refusals, coupon_entrants, coupon_rejections, coupons, coupon_templates;
