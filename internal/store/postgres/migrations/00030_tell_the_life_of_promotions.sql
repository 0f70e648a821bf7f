-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- When a promotion ends, who paused and cancelled it and when, and what people write down
-- about it. Nobody is known of what an earlier version paused or cancelled.
ALTER TABLE promotions
  ADD COLUMN IF NOT EXISTS ends_at timestamptz,
  ADD COLUMN IF NOT EXISTS paused_at timestamptz,
  ADD COLUMN IF NOT EXISTS cancelled_by text NOT NULL DEFAULT '',
  ADD COLUMN IF NOT EXISTS cancelled_at timestamptz,
  ADD COLUMN IF NOT EXISTS notes text NOT NULL DEFAULT '';
ALTER TABLE coupon_templates ADD COLUMN IF NOT EXISTS notes text NOT NULL DEFAULT '';

-- What the payouts are worth that succeeded within a step.
ALTER TABLE promotion_points ADD COLUMN IF NOT EXISTS amount bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE promotion_points DROP COLUMN IF EXISTS amount;
ALTER TABLE coupon_templates DROP COLUMN IF EXISTS notes;
ALTER TABLE promotions
  DROP COLUMN IF EXISTS notes,
  DROP COLUMN IF EXISTS cancelled_at,
  DROP COLUMN IF EXISTS cancelled_by,
  DROP COLUMN IF EXISTS paused_at,
  DROP COLUMN IF EXISTS ends_at;
