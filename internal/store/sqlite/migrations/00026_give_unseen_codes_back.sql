-- +goose Up
-- An imported code that nobody has seen, because its coupon is HELD, goes back to its
-- template if the hold ends: it moves behind the last one, under a new number.
-- codes_imported counts it again, and codes_returned counts it.
ALTER TABLE coupons ADD COLUMN code_unseen INTEGER NOT NULL DEFAULT 0;
ALTER TABLE coupon_templates ADD COLUMN codes_returned INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE coupon_templates DROP COLUMN codes_returned;
ALTER TABLE coupons DROP COLUMN code_unseen;
