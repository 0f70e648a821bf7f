-- +goose Up
-- What a promotion may be worth without an approval, by approval.above-per-day, and when
-- that was last raised. NULL: it has not started yet, or only Kafka records filled it.
ALTER TABLE promotions ADD COLUMN day_granted INTEGER;
ALTER TABLE promotions ADD COLUMN day_granted_at INTEGER;
CREATE INDEX promotions_granted ON promotions (day_granted_at) WHERE day_granted_at IS NOT NULL;

-- The settings of approvals of the instance.
ALTER TABLE instances ADD COLUMN approvals TEXT;

-- +goose Down
ALTER TABLE instances DROP COLUMN approvals;
DROP INDEX promotions_granted;
ALTER TABLE promotions DROP COLUMN day_granted_at;
ALTER TABLE promotions DROP COLUMN day_granted;
