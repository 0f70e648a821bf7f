-- +goose Up
-- Finds the payouts of a user in all promotions. Its columns never change, so it
-- slows only the insert of a payout.
CREATE INDEX payouts_user ON payouts (user_id, promotion_id DESC, target_id) WHERE user_id <> '';

-- +goose Down
DROP INDEX payouts_user;
