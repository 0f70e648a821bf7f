-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- Nothing of an archived template changes any more, so that its coupons can be removed.
-- rows_removed means that none is left.
ALTER TABLE coupon_templates
    ADD COLUMN IF NOT EXISTS archived_at timestamptz,
    ADD COLUMN IF NOT EXISTS rows_removed boolean NOT NULL DEFAULT false CHECK (archived_at IS NOT NULL OR NOT rows_removed);

-- The last defense against a coupon beyond the limit of its user, whose rows are
-- removed. It holds for instances of the previous version too.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION coupon_templates_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'coupon template % is archived', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'coupon_templates_archived', DETAIL = OLD.id::text;
END
$$;
-- +goose StatementEnd
CREATE OR REPLACE TRIGGER coupon_templates_archived BEFORE UPDATE ON coupon_templates
    FOR EACH ROW WHEN (OLD.archived_at IS NOT NULL AND NOT (NEW.rows_removed AND NOT OLD.rows_removed))
    EXECUTE FUNCTION coupon_templates_refuse();

-- +goose Down
DROP TRIGGER IF EXISTS coupon_templates_archived ON coupon_templates;
DROP FUNCTION IF EXISTS coupon_templates_refuse();
ALTER TABLE coupon_templates DROP COLUMN IF EXISTS rows_removed, DROP COLUMN IF EXISTS archived_at;
