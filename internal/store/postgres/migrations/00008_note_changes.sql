-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated.

-- +goose Up
-- The transaction that last changed each promotion (part 0) and its counts (part
-- 1), for PromotionChanges. An index on a column of promotions or summaries that
-- every change writes would end their HOT updates.
-- A transaction that writes a row here holds the lock of the row of promotions or
-- summaries that it belongs to. So it waits for no lock here.
CREATE TABLE IF NOT EXISTS changes (
    promotion_id bigint   NOT NULL REFERENCES promotions (id) ON DELETE CASCADE,
    part         smallint NOT NULL,
    changed      xid8     NOT NULL,
    PRIMARY KEY (promotion_id, part)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX IF NOT EXISTS changes_changed ON changes (changed);

-- Triggers note a change by any statement, also by running instances of the previous
-- version, which do not know this table. A note costs a transaction about 20 µs
-- and 300 bytes of WAL for each promotion.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION changes_note_promotion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE changes c SET changed = pg_current_xact_id() WHERE c.promotion_id = NEW.id AND c.part = 0;
    IF NOT FOUND THEN
        INSERT INTO changes (promotion_id, part, changed) VALUES (NEW.id, 0, pg_current_xact_id());
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION changes_note_counts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE changes c SET changed = pg_current_xact_id() WHERE c.promotion_id = NEW.promotion_id AND c.part = 1;
    IF NOT FOUND THEN
        INSERT INTO changes (promotion_id, part, changed) VALUES (NEW.promotion_id, 1, pg_current_xact_id());
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE OR REPLACE TRIGGER changes_promotion AFTER INSERT OR UPDATE ON promotions
    FOR EACH ROW EXECUTE FUNCTION changes_note_promotion();
CREATE OR REPLACE TRIGGER changes_counts AFTER INSERT OR UPDATE ON summaries
    FOR EACH ROW WHEN (NEW.summary_id = 0) EXECUTE FUNCTION changes_note_counts();

-- +goose Down
DROP TRIGGER IF EXISTS changes_counts ON summaries;
DROP TRIGGER IF EXISTS changes_promotion ON promotions;
DROP FUNCTION IF EXISTS changes_note_counts();
DROP FUNCTION IF EXISTS changes_note_promotion();
DROP TABLE IF EXISTS changes;
