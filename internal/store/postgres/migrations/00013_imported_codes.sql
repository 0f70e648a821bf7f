-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated, and none rewrites a table.

-- +goose Up
-- How many imported codes a template has; 0 means that its codes are generated.
-- The n-th coupon that is ever issued gets the code with the number n.
ALTER TABLE coupon_templates ADD COLUMN IF NOT EXISTS codes_imported bigint NOT NULL DEFAULT 0;

-- One row per file. state is 0 (staging), 1 (published) or 2 (abandoned). Published
-- codes of a template have the numbers from first_number on.
CREATE TABLE IF NOT EXISTS coupon_code_imports (
    id           bigint      PRIMARY KEY,
    template_id  bigint      NOT NULL,
    state        smallint    NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    codes        bigint      NOT NULL DEFAULT 0,
    first_number bigint      CHECK ((first_number IS NOT NULL) = (state = 1)),
    touched_at   timestamptz NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS coupon_code_imports_first ON coupon_code_imports (template_id, first_number);
CREATE UNIQUE INDEX IF NOT EXISTS coupon_code_imports_staging ON coupon_code_imports (template_id) WHERE state = 0;
CREATE INDEX IF NOT EXISTS coupon_code_imports_touched ON coupon_code_imports (touched_at) WHERE state <> 1;

-- line is the number of a code within its import, from 1.
CREATE TABLE IF NOT EXISTS coupon_codes (
    import_id bigint NOT NULL,
    line      bigint NOT NULL,
    code      text   NOT NULL,
    PRIMARY KEY (import_id, line)
);
CREATE UNIQUE INDEX IF NOT EXISTS coupon_codes_code ON coupon_codes (import_id, code);

-- +goose Down
DROP TABLE IF EXISTS coupon_codes;
DROP TABLE IF EXISTS coupon_code_imports;
ALTER TABLE coupon_templates DROP COLUMN IF EXISTS codes_imported;
