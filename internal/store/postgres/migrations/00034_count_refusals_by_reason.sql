-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- Requests of refused, by the reason. Those of earlier versions, and of another reason,
-- are in none of these.
ALTER TABLE template_points
  ADD COLUMN IF NOT EXISTS refused_sold_out bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS refused_user_limit bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS refused_not_open bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS refused_closed bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS refused_hold_lapsed bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS refused_not_drawn bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS refused_error bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS refused_archived bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS refused_unavailable bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE template_points
  DROP COLUMN IF EXISTS refused_unavailable,
  DROP COLUMN IF EXISTS refused_archived,
  DROP COLUMN IF EXISTS refused_error,
  DROP COLUMN IF EXISTS refused_not_drawn,
  DROP COLUMN IF EXISTS refused_hold_lapsed,
  DROP COLUMN IF EXISTS refused_closed,
  DROP COLUMN IF EXISTS refused_not_open,
  DROP COLUMN IF EXISTS refused_user_limit,
  DROP COLUMN IF EXISTS refused_sold_out;
