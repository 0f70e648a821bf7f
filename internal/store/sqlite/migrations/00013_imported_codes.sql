-- +goose Up
-- How many imported codes a template has; 0 means that its codes are generated.
-- The n-th coupon that is ever issued gets the code with the number n.
ALTER TABLE coupon_templates ADD COLUMN codes_imported INTEGER NOT NULL DEFAULT 0;

-- One row per file. state is 0 (staging), 1 (published) or 2 (abandoned). Published
-- codes of a template have the numbers from first_number on.
CREATE TABLE coupon_code_imports (
    id           INTEGER PRIMARY KEY,
    template_id  INTEGER NOT NULL,
    state        INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    codes        INTEGER NOT NULL DEFAULT 0,
    first_number INTEGER CHECK ((first_number IS NOT NULL) = (state = 1)),
    touched_at   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX coupon_code_imports_first ON coupon_code_imports (template_id, first_number);
CREATE UNIQUE INDEX coupon_code_imports_staging ON coupon_code_imports (template_id) WHERE state = 0;
CREATE INDEX coupon_code_imports_touched ON coupon_code_imports (touched_at) WHERE state <> 1;

-- line is the number of a code within its import, from 1.
CREATE TABLE coupon_codes (
    import_id INTEGER NOT NULL,
    line      INTEGER NOT NULL,
    code      TEXT    NOT NULL,
    PRIMARY KEY (import_id, line)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX coupon_codes_code ON coupon_codes (import_id, code);

-- +goose Down
DROP TABLE coupon_codes;
DROP TABLE coupon_code_imports;
ALTER TABLE coupon_templates DROP COLUMN codes_imported;
