-- +goose Up
-- Nothing of an archived template changes any more, so that its coupons can be removed.
-- rows_removed means that none is left.
ALTER TABLE coupon_templates ADD COLUMN archived_at INTEGER;
ALTER TABLE coupon_templates ADD COLUMN rows_removed INTEGER NOT NULL DEFAULT 0 CHECK (rows_removed = 0 OR rows_removed = 1);

-- The last defense against a coupon beyond the limit of its user, whose rows are removed.
-- +goose StatementBegin
CREATE TRIGGER coupon_templates_archived BEFORE UPDATE ON coupon_templates
WHEN OLD.archived_at IS NOT NULL AND NOT (NEW.rows_removed AND NOT OLD.rows_removed) BEGIN
    SELECT RAISE(ABORT, 'the coupon template is archived');
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER coupon_templates_archived;
ALTER TABLE coupon_templates DROP COLUMN rows_removed;
ALTER TABLE coupon_templates DROP COLUMN archived_at;
