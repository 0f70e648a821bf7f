-- +goose Up
-- An archived promotion takes no targets any more, so that its payouts can be removed.
-- rows_removed means that none is left.
ALTER TABLE promotions ADD COLUMN archived_at INTEGER;
ALTER TABLE promotions ADD COLUMN rows_removed INTEGER NOT NULL DEFAULT 0 CHECK (rows_removed = 0 OR rows_removed = 1);

-- The last defense against paying a removed target again: nothing of an archived
-- promotion waits to be paid.
ALTER TABLE summaries ADD COLUMN archived INTEGER NOT NULL DEFAULT 0 CHECK (archived = 0 OR ready + queued + retrying + unknown = 0);

CREATE INDEX promotions_ended ON promotions (finished_at, id) WHERE finished_at IS NOT NULL AND NOT rows_removed;

-- +goose Down
DROP INDEX promotions_ended;
ALTER TABLE summaries DROP COLUMN archived;
ALTER TABLE promotions DROP COLUMN rows_removed;
ALTER TABLE promotions DROP COLUMN archived_at;
