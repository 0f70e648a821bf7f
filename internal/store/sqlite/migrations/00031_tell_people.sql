-- +goose Up
-- What an endpoint is: another system (WEBHOOK), or people (SLACK, EMAIL), who hear of a
-- pause from the statements that pause. recipients are e-mail addresses with spaces between.
ALTER TABLE webhook_endpoints ADD COLUMN kind TEXT NOT NULL DEFAULT 'WEBHOOK';
ALTER TABLE webhook_endpoints ADD COLUMN recipients TEXT NOT NULL DEFAULT '';
ALTER TABLE webhook_endpoints ADD COLUMN language TEXT NOT NULL DEFAULT '';
DROP TRIGGER webhook_promotion;
-- +goose StatementBegin
CREATE TRIGGER webhook_promotion AFTER UPDATE OF status ON promotions WHEN NEW.status <> OLD.status BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, promotion_id)
    SELECT e.id, n.event, n.at, n.at, NEW.id
    FROM (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS at, CASE
        WHEN NEW.status = 'RUNNING' AND OLD.status = 'DRAFT' THEN 1
        WHEN NEW.status = 'PAUSED' THEN 2
        WHEN NEW.status = 'COMPLETED' THEN 3
        WHEN NEW.status = 'CANCELLED' THEN 4 END AS event) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> n.event & 1 = 1 AND (e.kind = 'WEBHOOK' OR n.event <> 2) ORDER BY e.id;
END;
-- +goose StatementEnd

-- The subject of events about coupon templates.
ALTER TABLE webhook_deliveries ADD COLUMN template_id INTEGER;

-- How many coupons the template could have when the latest event said that it is sold out;
-- 0: none did. It is sold out again only with more coupons.
ALTER TABLE coupon_templates ADD COLUMN sold_out_quantity INTEGER NOT NULL DEFAULT 0;

-- The revision of a promotion at which an event said that it waits for an approval.
ALTER TABLE promotions ADD COLUMN asked_revision INTEGER NOT NULL DEFAULT 0;

-- +goose StatementBegin
CREATE TRIGGER webhook_template_new AFTER INSERT ON coupon_templates WHEN NEW.awaiting_quantity > NEW.total_quantity BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, template_id)
    SELECT e.id, 13, n.at, n.at, NEW.id FROM (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS at) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> 13 & 1 = 1 ORDER BY e.id;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER webhook_template AFTER UPDATE OF awaiting_quantity ON coupon_templates
WHEN NEW.awaiting_quantity > NEW.total_quantity AND NEW.awaiting_quantity > OLD.awaiting_quantity BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, template_id)
    SELECT e.id, 13, n.at, n.at, NEW.id FROM (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS at) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> 13 & 1 = 1 ORDER BY e.id;
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER webhook_template;
DROP TRIGGER webhook_template_new;
ALTER TABLE promotions DROP COLUMN asked_revision;
ALTER TABLE coupon_templates DROP COLUMN sold_out_quantity;
ALTER TABLE webhook_deliveries DROP COLUMN template_id;
DROP TRIGGER webhook_promotion;
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
ALTER TABLE webhook_endpoints DROP COLUMN language;
ALTER TABLE webhook_endpoints DROP COLUMN recipients;
ALTER TABLE webhook_endpoints DROP COLUMN kind;
