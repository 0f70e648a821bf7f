-- +goose Up
-- JSON arrays of texts: the names of the columns of a file, and the cells of its refused
-- lines. NULL if they are not known, or too long.
ALTER TABLE uploads ADD COLUMN header TEXT;
ALTER TABLE upload_errors ADD COLUMN cells TEXT;

-- +goose Down
ALTER TABLE upload_errors DROP COLUMN cells;
ALTER TABLE uploads DROP COLUMN header;
