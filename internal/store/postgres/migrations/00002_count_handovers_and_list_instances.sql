-- +goose NO TRANSACTION
-- Each statement is a transaction of its own and can be repeated: instances of
-- the version before may be at work, and would deadlock with one that holds
-- two tables. A constant default rewrites no table; a CHECK on payouts would
-- read the whole of it.

-- +goose Up
ALTER TABLE payouts ADD COLUMN IF NOT EXISTS handovers smallint NOT NULL DEFAULT 0;
ALTER TABLE promotions ADD COLUMN IF NOT EXISTS consumers_per_instance integer NOT NULL DEFAULT 0
    CHECK (consumers_per_instance >= 0);

-- What instances tell of themselves; roles and pools are JSON.
CREATE TABLE IF NOT EXISTS instances (
    name        text        COLLATE "C" PRIMARY KEY,
    version     text        NOT NULL,
    roles       text        NOT NULL,
    pools       text        NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    alive_until timestamptz NOT NULL
) WITH (fillfactor = 20);

-- +goose Down
DROP TABLE IF EXISTS instances;
ALTER TABLE promotions DROP COLUMN IF EXISTS consumers_per_instance;
ALTER TABLE payouts DROP COLUMN IF EXISTS handovers;
