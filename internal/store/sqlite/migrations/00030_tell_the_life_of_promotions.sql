-- +goose Up
-- When a promotion ends, who paused and cancelled it and when, and what people write down
-- about it. Nobody is known of what an earlier version paused or cancelled.
ALTER TABLE promotions ADD COLUMN ends_at INTEGER;
ALTER TABLE promotions ADD COLUMN paused_at INTEGER;
ALTER TABLE promotions ADD COLUMN cancelled_by TEXT NOT NULL DEFAULT '';
ALTER TABLE promotions ADD COLUMN cancelled_at INTEGER;
ALTER TABLE promotions ADD COLUMN notes TEXT NOT NULL DEFAULT '';
ALTER TABLE coupon_templates ADD COLUMN notes TEXT NOT NULL DEFAULT '';

-- What the payouts are worth that succeeded within a step.
ALTER TABLE promotion_points ADD COLUMN amount INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE promotion_points DROP COLUMN amount;
ALTER TABLE coupon_templates DROP COLUMN notes;
ALTER TABLE promotions DROP COLUMN notes;
ALTER TABLE promotions DROP COLUMN cancelled_at;
ALTER TABLE promotions DROP COLUMN cancelled_by;
ALTER TABLE promotions DROP COLUMN paused_at;
ALTER TABLE promotions DROP COLUMN ends_at;
