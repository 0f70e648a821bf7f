-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- What an endpoint is: another system (WEBHOOK), or people (SLACK, EMAIL), who hear of a
-- pause from the statements that pause. recipients are e-mail addresses with spaces between.
ALTER TABLE webhook_endpoints ADD COLUMN IF NOT EXISTS kind text NOT NULL DEFAULT 'WEBHOOK';
ALTER TABLE webhook_endpoints ADD COLUMN IF NOT EXISTS recipients text NOT NULL DEFAULT '';
ALTER TABLE webhook_endpoints ADD COLUMN IF NOT EXISTS language text NOT NULL DEFAULT '';
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
    WHERE e.enabled AND e.events >> n.event & 1 = 1 AND (e.kind = 'WEBHOOK' OR n.event <> 2) ORDER BY e.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- The subject of events about coupon templates.
ALTER TABLE webhook_deliveries ADD COLUMN IF NOT EXISTS template_id bigint;

-- How many coupons the template could have when the latest event said that it is sold out;
-- 0: none did. It is sold out again only with more coupons.
ALTER TABLE coupon_templates ADD COLUMN IF NOT EXISTS sold_out_quantity bigint NOT NULL DEFAULT 0;

-- The revision of a promotion at which an event said that it waits for an approval.
ALTER TABLE promotions ADD COLUMN IF NOT EXISTS asked_revision bigint NOT NULL DEFAULT 0;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION webhook_template_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, template_id)
    SELECT e.id, 13, n.at, n.at, NEW.id FROM (SELECT clock_timestamp() AS at) n, webhook_endpoints e
    WHERE e.enabled AND e.events >> 13 & 1 = 1 ORDER BY e.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE OR REPLACE TRIGGER webhook_template_new AFTER INSERT ON coupon_templates
    FOR EACH ROW WHEN (NEW.awaiting_quantity > NEW.total_quantity) EXECUTE FUNCTION webhook_template_event();
CREATE OR REPLACE TRIGGER webhook_template AFTER UPDATE OF awaiting_quantity ON coupon_templates
    FOR EACH ROW WHEN (NEW.awaiting_quantity > NEW.total_quantity AND NEW.awaiting_quantity > OLD.awaiting_quantity)
    EXECUTE FUNCTION webhook_template_event();

-- +goose Down
DROP TRIGGER IF EXISTS webhook_template ON coupon_templates;
DROP TRIGGER IF EXISTS webhook_template_new ON coupon_templates;
DROP FUNCTION IF EXISTS webhook_template_event();
ALTER TABLE promotions DROP COLUMN IF EXISTS asked_revision;
ALTER TABLE coupon_templates DROP COLUMN IF EXISTS sold_out_quantity;
ALTER TABLE webhook_deliveries DROP COLUMN IF EXISTS template_id;
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
ALTER TABLE webhook_endpoints DROP COLUMN IF EXISTS language, DROP COLUMN IF EXISTS recipients, DROP COLUMN IF EXISTS kind;
