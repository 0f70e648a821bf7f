-- +goose Up
-- No CHECK on payouts: adding one would read the whole table.
ALTER TABLE payouts ADD COLUMN handovers INTEGER NOT NULL DEFAULT 0;
ALTER TABLE promotions ADD COLUMN consumers_per_instance INTEGER NOT NULL DEFAULT 0 CHECK (consumers_per_instance >= 0);

-- The running instances; roles and pools are JSON.
CREATE TABLE instances (
    name        TEXT    PRIMARY KEY,
    version     TEXT    NOT NULL,
    roles       TEXT    NOT NULL,
    pools       TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    alive_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE instances;
ALTER TABLE promotions DROP COLUMN consumers_per_instance;
ALTER TABLE payouts DROP COLUMN handovers;
