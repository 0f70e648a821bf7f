-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- JSON arrays of texts: the names of the columns of a file, and the cells of its refused
-- lines. NULL if they are not known, or too long.
ALTER TABLE uploads ADD COLUMN IF NOT EXISTS header text;
ALTER TABLE upload_errors ADD COLUMN IF NOT EXISTS cells text;

-- +goose Down
ALTER TABLE upload_errors DROP COLUMN IF EXISTS cells;
ALTER TABLE uploads DROP COLUMN IF EXISTS header;
