-- +goose Up
-- Every filter of a list of payouts has an index in the order of the list.
-- payouts_rare has the other states, and payouts_open the QUEUED payouts, of
-- which a promotion has few at a time. payouts_code lists by error code, alone or
-- with a state.
CREATE INDEX payouts_settled ON payouts (promotion_id, state, target_id) WHERE state = 0 OR state = 4 OR state = 6;
CREATE INDEX payouts_code ON payouts (promotion_id, error_code, state, target_id) WHERE error_code <> '';

CREATE INDEX promotions_status ON promotions (status);

-- A list of dead letters can have each of three filters. One without a status
-- reads the three statuses one after the other.
CREATE INDEX dead_letters_status ON dead_letters (status);
CREATE INDEX dead_letters_source ON dead_letters (source, status);
CREATE INDEX dead_letters_reason ON dead_letters (reason, status);
CREATE INDEX dead_letters_source_reason ON dead_letters (source, reason, status);
DROP INDEX dead_letters_open;

-- +goose Down
CREATE INDEX dead_letters_open ON dead_letters (id) WHERE status = 'OPEN';
DROP INDEX dead_letters_source_reason;
DROP INDEX dead_letters_reason;
DROP INDEX dead_letters_source;
DROP INDEX dead_letters_status;
DROP INDEX promotions_status;
DROP INDEX payouts_code;
DROP INDEX payouts_settled;
