-- +goose NO TRANSACTION
-- Each statement is its own transaction and can be repeated. Instances of the
-- previous version may be running, and would deadlock with a transaction that
-- locks two tables. A constant default rewrites no table. There is no CHECK on
-- payouts, because adding one would read the whole table.

-- +goose Up
ALTER TABLE payouts ADD COLUMN IF NOT EXISTS handovers smallint NOT NULL DEFAULT 0;
ALTER TABLE promotions ADD COLUMN IF NOT EXISTS consumers_per_instance integer NOT NULL DEFAULT 0
    CHECK (consumers_per_instance >= 0);

-- The running instances; roles and pools are JSON.
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
