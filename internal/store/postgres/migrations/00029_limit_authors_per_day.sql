-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- What a promotion may be worth without an approval, by approval.above-per-day, and when
-- that was last raised. NULL: it has not started yet, or only Kafka records filled it.
ALTER TABLE promotions
  ADD COLUMN IF NOT EXISTS day_granted bigint,
  ADD COLUMN IF NOT EXISTS day_granted_at timestamptz;
CREATE INDEX IF NOT EXISTS promotions_granted ON promotions (day_granted_at) WHERE day_granted_at IS NOT NULL;

-- The settings of approvals of each instance; NULL for an instance of the previous
-- version. It replaces approval_above, which such an instance still writes.
ALTER TABLE instances ADD COLUMN IF NOT EXISTS approvals text;

-- +goose Down
ALTER TABLE instances DROP COLUMN IF EXISTS approvals;
ALTER TABLE promotions
  DROP COLUMN IF EXISTS day_granted_at,
  DROP COLUMN IF EXISTS day_granted;
