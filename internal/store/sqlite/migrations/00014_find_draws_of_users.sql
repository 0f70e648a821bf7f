-- +goose Up
-- For the draws that a user entered.
CREATE INDEX coupon_entrants_user ON coupon_entrants (user_id);

-- +goose Down
DROP INDEX coupon_entrants_user;
