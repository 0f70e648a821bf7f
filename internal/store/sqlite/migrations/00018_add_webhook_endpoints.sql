-- +goose Up
-- events has a bit for each event, with the numbers of store.WebhookEvents. failing_since
-- and failures describe the failed attempts since the last success.
CREATE TABLE webhook_endpoints (
    id                INTEGER PRIMARY KEY,
    url               TEXT    NOT NULL,
    description       TEXT    NOT NULL DEFAULT '',
    events            INTEGER NOT NULL,
    enabled           INTEGER NOT NULL,
    disabled_reason   TEXT    NOT NULL DEFAULT '',
    disabled_at       INTEGER,
    secret            TEXT    NOT NULL,
    previous_secret   TEXT    NOT NULL DEFAULT '',
    previous_until    INTEGER,
    failing_since     INTEGER,
    failures          INTEGER NOT NULL DEFAULT 0,
    last_error        TEXT    NOT NULL DEFAULT '',
    delivered_at      INTEGER,
    overflowing       INTEGER NOT NULL DEFAULT 0,
    dropped           INTEGER NOT NULL DEFAULT 0,
    dropped_at        INTEGER,
    created_at        INTEGER NOT NULL,
    created_by        TEXT    NOT NULL
) STRICT;

-- One row for each event and endpoint. state is 0 (pending), 1 (delivered) or 2
-- (abandoned). attempts counts all attempts, tries those since the event or the
-- latest resend. body is what was sent first, and is sent again. endpoint_id is no foreign
-- key: who deletes an endpoint would wait for those who record events, and they for the deletion.
CREATE TABLE webhook_deliveries (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    endpoint_id  INTEGER NOT NULL,
    event        INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    promotion_id INTEGER,
    target_id    INTEGER,
    coupon_id    INTEGER,
    state        INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    attempts     INTEGER NOT NULL DEFAULT 0,
    tries        INTEGER NOT NULL DEFAULT 0,
    due_at       INTEGER NOT NULL,
    done_at      INTEGER,
    body         BLOB
) STRICT;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, due_at, id) WHERE state = 0;
CREATE INDEX webhook_deliveries_listed ON webhook_deliveries (endpoint_id, state, id);
CREATE INDEX webhook_deliveries_done ON webhook_deliveries (endpoint_id, done_at) WHERE done_at IS NOT NULL;

-- status is the HTTP status of the response; 0 means that there was none.
CREATE TABLE webhook_attempts (
    delivery_id INTEGER NOT NULL REFERENCES webhook_deliveries (id) ON DELETE CASCADE,
    number      INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    status      INTEGER NOT NULL,
    millis      INTEGER NOT NULL,
    error       TEXT    NOT NULL,
    PRIMARY KEY (delivery_id, number)
) STRICT, WITHOUT ROWID;

-- Triggers record the events of promotions, payouts and coupons, by any statement.
-- +goose StatementBegin
CREATE TRIGGER webhook_promotion AFTER UPDATE OF status ON promotions WHEN NEW.status <> OLD.status BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, promotion_id)
    SELECT e.id, n.event, n.at, n.at, NEW.id
    FROM (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS at, CASE
        WHEN NEW.status = 'RUNNING' AND OLD.status = 'DRAFT' THEN 1
        WHEN NEW.status = 'PAUSED' THEN 2
        WHEN NEW.status = 'COMPLETED' THEN 3
        WHEN NEW.status = 'CANCELLED' THEN 4 END AS event) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> n.event & 1 = 1 ORDER BY e.id;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER webhook_payout AFTER UPDATE OF state ON payouts WHEN NEW.state <> OLD.state AND NEW.state IN (3, 5) BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, promotion_id, target_id)
    SELECT e.id, n.event, n.at, n.at, NEW.promotion_id, NEW.target_id
    FROM (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS at, CASE NEW.state WHEN 5 THEN 7 ELSE 8 END AS event) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> n.event & 1 = 1 ORDER BY e.id;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER webhook_coupon_new AFTER INSERT ON coupons WHEN NEW.status = 0 BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, coupon_id)
    SELECT e.id, 9, n.at, n.at, NEW.id
    FROM (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS at) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> 9 & 1 = 1 ORDER BY e.id;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER webhook_coupon AFTER UPDATE OF status ON coupons WHEN NEW.status <> OLD.status AND NEW.status <= 2 BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, coupon_id)
    SELECT e.id, n.event, n.at, n.at, NEW.id
    FROM (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS at, CASE NEW.status WHEN 0 THEN 9 WHEN 2 THEN 10 ELSE 11 END AS event) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> n.event & 1 = 1 ORDER BY e.id;
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER webhook_coupon;
DROP TRIGGER webhook_coupon_new;
DROP TRIGGER webhook_payout;
DROP TRIGGER webhook_promotion;
DROP TABLE webhook_attempts;
DROP TABLE webhook_deliveries;
DROP TABLE webhook_endpoints;
