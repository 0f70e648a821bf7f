-- +goose Up
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
