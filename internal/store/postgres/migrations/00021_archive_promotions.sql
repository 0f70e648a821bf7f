-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- An archived promotion takes no targets any more, so that its payouts can be removed.
-- rows_removed means that none is left.
ALTER TABLE promotions
    ADD COLUMN IF NOT EXISTS archived_at timestamptz,
    ADD COLUMN IF NOT EXISTS rows_removed boolean NOT NULL DEFAULT false CHECK (archived_at IS NOT NULL OR NOT rows_removed);

-- The last defense against paying a removed target again: nothing of an archived
-- promotion waits to be paid. It holds for instances of the previous version too.
ALTER TABLE summaries ADD COLUMN IF NOT EXISTS archived boolean NOT NULL DEFAULT false
    CONSTRAINT summaries_archived CHECK (NOT archived OR ready + queued + retrying + unknown = 0);

-- No dispatch writes these columns.
CREATE INDEX IF NOT EXISTS promotions_ended ON promotions (finished_at, id) WHERE finished_at IS NOT NULL AND NOT rows_removed;

-- +goose Down
DROP INDEX IF EXISTS promotions_ended;
ALTER TABLE summaries DROP COLUMN IF EXISTS archived;
ALTER TABLE promotions DROP COLUMN IF EXISTS rows_removed, DROP COLUMN IF EXISTS archived_at;
