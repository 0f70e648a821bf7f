-- +goose Up
-- Who cancelled a coupon; NULL for a hold that ended, and for earlier versions.
ALTER TABLE coupons ADD COLUMN cancelled_by TEXT;
-- The coupons of a template in a status other than ISSUED, by ticket.
CREATE INDEX coupons_listed ON coupons (template_id, status, ticket, generation) WHERE status <> 0;

-- +goose Down
DROP INDEX coupons_listed;
ALTER TABLE coupons DROP COLUMN cancelled_by;
