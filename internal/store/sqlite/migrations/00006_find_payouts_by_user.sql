-- +goose Up
-- What a user has in all promotions. Nothing in it ever changes, so only the
-- insert of a payout pays for it.
CREATE INDEX payouts_user ON payouts (user_id, promotion_id DESC, target_id) WHERE user_id <> '';

-- +goose Down
DROP INDEX payouts_user;
