-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated.

-- +goose Up
-- events has a bit for each event, with the numbers of store.WebhookEvents. failing_since
-- and failures describe the failed attempts since the last success.
CREATE TABLE IF NOT EXISTS webhook_endpoints (
    id                bigint      PRIMARY KEY,
    url               text        NOT NULL,
    description       text        NOT NULL DEFAULT '',
    events            bigint      NOT NULL,
    enabled           boolean     NOT NULL,
    disabled_reason   text        NOT NULL DEFAULT '',
    disabled_at       timestamptz,
    secret            text        NOT NULL,
    previous_secret   text        NOT NULL DEFAULT '',
    previous_until    timestamptz,
    failing_since     timestamptz,
    failures          integer     NOT NULL DEFAULT 0,
    last_error        text        NOT NULL DEFAULT '',
    delivered_at      timestamptz,
    overflowing       boolean     NOT NULL DEFAULT false,
    dropped           bigint      NOT NULL DEFAULT 0,
    dropped_at        timestamptz,
    created_at        timestamptz NOT NULL,
    created_by        text        NOT NULL
);

-- One row for each event and endpoint. state is 0 (pending), 1 (delivered) or 2
-- (abandoned). attempts counts all attempts, tries those since the event or the
-- latest resend. body is what was sent first, and is sent again. endpoint_id is no foreign
-- key: who deletes an endpoint would wait for those who record events, and they for the deletion.
CREATE TABLE IF NOT EXISTS webhook_deliveries (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id  bigint      NOT NULL,
    event        smallint    NOT NULL,
    at           timestamptz NOT NULL,
    promotion_id bigint,
    target_id    bigint,
    coupon_id    bigint,
    state        smallint    NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    attempts     integer     NOT NULL DEFAULT 0,
    tries        integer     NOT NULL DEFAULT 0,
    due_at       timestamptz NOT NULL,
    done_at      timestamptz,
    body         bytea
) WITH (fillfactor = 80, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS webhook_deliveries_due ON webhook_deliveries (endpoint_id, due_at, id) WHERE state = 0;
CREATE INDEX IF NOT EXISTS webhook_deliveries_listed ON webhook_deliveries (endpoint_id, state, id);
CREATE INDEX IF NOT EXISTS webhook_deliveries_done ON webhook_deliveries (endpoint_id, done_at) WHERE done_at IS NOT NULL;

-- status is the HTTP status of the response; 0 means that there was none.
CREATE TABLE IF NOT EXISTS webhook_attempts (
    delivery_id bigint      NOT NULL REFERENCES webhook_deliveries (id) ON DELETE CASCADE,
    number      integer     NOT NULL,
    at          timestamptz NOT NULL,
    status      integer     NOT NULL,
    millis      bigint      NOT NULL,
    error       text        NOT NULL,
    PRIMARY KEY (delivery_id, number)
);

-- Triggers record the events of promotions and the changes of single coupons, by any
-- statement. The statements that finish payouts and issue coupons record their own
-- events: a trigger would cost them time for each row.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION webhook_promotion_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, promotion_id)
    SELECT e.id, n.event, n.at, n.at, NEW.id
    FROM (SELECT clock_timestamp() AS at, CASE
        WHEN NEW.status = 'RUNNING' AND OLD.status = 'DRAFT' THEN 1
        WHEN NEW.status = 'PAUSED' THEN 2
        WHEN NEW.status = 'COMPLETED' THEN 3
        WHEN NEW.status = 'CANCELLED' THEN 4 END AS event) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> n.event & 1 = 1 ORDER BY e.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION webhook_coupon_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, coupon_id)
    SELECT e.id, n.event, n.at, n.at, NEW.id
    FROM (SELECT clock_timestamp() AS at, CASE NEW.status WHEN 0 THEN 9 WHEN 2 THEN 10 ELSE 11 END AS event) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> n.event & 1 = 1 ORDER BY e.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE OR REPLACE TRIGGER webhook_promotion AFTER UPDATE OF status ON promotions
    FOR EACH ROW WHEN (NEW.status <> OLD.status) EXECUTE FUNCTION webhook_promotion_event();
CREATE OR REPLACE TRIGGER webhook_coupon AFTER UPDATE OF status ON coupons
    FOR EACH ROW WHEN (NEW.status <> OLD.status AND NEW.status <= 2) EXECUTE FUNCTION webhook_coupon_event();

-- +goose Down
DROP TRIGGER IF EXISTS webhook_coupon ON coupons;
DROP TRIGGER IF EXISTS webhook_promotion ON promotions;
DROP FUNCTION IF EXISTS webhook_coupon_event();
DROP FUNCTION IF EXISTS webhook_promotion_event();
DROP TABLE IF EXISTS webhook_attempts;
DROP TABLE IF EXISTS webhook_deliveries;
DROP TABLE IF EXISTS webhook_endpoints;
