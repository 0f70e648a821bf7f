-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- An imported code that nobody has seen, because its coupon is HELD, goes back to its
-- template if the hold ends: it moves behind the last one, under a new number.
-- codes_imported counts it again, and codes_returned counts it.
ALTER TABLE coupons ADD COLUMN IF NOT EXISTS code_unseen boolean NOT NULL DEFAULT false;
ALTER TABLE coupon_templates ADD COLUMN IF NOT EXISTS codes_returned bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE coupon_templates DROP COLUMN IF EXISTS codes_returned;
ALTER TABLE coupons DROP COLUMN IF EXISTS code_unseen;
