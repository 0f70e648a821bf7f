-- +goose Up
-- The span that a payout belongs to, in the form of the header traceparent; NULL without
-- a sampled trace. No default: no row is rewritten, and instances of the version before
-- insert without it.
ALTER TABLE payouts ADD COLUMN trace TEXT;

-- +goose Down
ALTER TABLE payouts DROP COLUMN trace;
