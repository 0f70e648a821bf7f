-- +goose Up
-- UNKNOWN payouts of all promotions, oldest first.
CREATE INDEX payouts_unknown_since ON payouts (updated_at, promotion_id, target_id) WHERE state = 3;

-- What a list of reconciliations shows; NULL for reports of earlier versions.
ALTER TABLE reconciliations ADD COLUMN checked integer;
ALTER TABLE reconciliations ADD COLUMN drifts integer;
ALTER TABLE reconciliations ADD COLUMN repaired integer;

-- Whether an instance has reported that this one died.
ALTER TABLE instances ADD COLUMN death_reported integer NOT NULL DEFAULT 0;

-- Points of the timelines. A row counts what one instance saw within step seconds
-- from at, which is in seconds since 1970. All columns after instance are sums, so
-- adding rows gives the row of a longer step, whatever the order. Row 0 of a table is
-- the sum over all promotions or templates. waiting divided by samples is an average.
-- calls_0 to calls_27 count calls to the provider by their duration; see
-- rows.LatencyBounds.
CREATE TABLE promotion_points (
    promotion_id integer NOT NULL,
    at           integer NOT NULL,
    step         integer NOT NULL CHECK (step <> 0),
    instance     text    NOT NULL,
    succeeded    integer NOT NULL DEFAULT 0,
    failed       integer NOT NULL DEFAULT 0,
    retrying     integer NOT NULL DEFAULT 0,
    unknown      integer NOT NULL DEFAULT 0,
    call_millis  integer NOT NULL DEFAULT 0,
    waiting      integer NOT NULL DEFAULT 0,
    samples      integer NOT NULL DEFAULT 0,
    calls_0 integer NOT NULL DEFAULT 0, calls_1 integer NOT NULL DEFAULT 0, calls_2 integer NOT NULL DEFAULT 0,
    calls_3 integer NOT NULL DEFAULT 0, calls_4 integer NOT NULL DEFAULT 0, calls_5 integer NOT NULL DEFAULT 0,
    calls_6 integer NOT NULL DEFAULT 0, calls_7 integer NOT NULL DEFAULT 0, calls_8 integer NOT NULL DEFAULT 0,
    calls_9 integer NOT NULL DEFAULT 0, calls_10 integer NOT NULL DEFAULT 0, calls_11 integer NOT NULL DEFAULT 0,
    calls_12 integer NOT NULL DEFAULT 0, calls_13 integer NOT NULL DEFAULT 0, calls_14 integer NOT NULL DEFAULT 0,
    calls_15 integer NOT NULL DEFAULT 0, calls_16 integer NOT NULL DEFAULT 0, calls_17 integer NOT NULL DEFAULT 0,
    calls_18 integer NOT NULL DEFAULT 0, calls_19 integer NOT NULL DEFAULT 0, calls_20 integer NOT NULL DEFAULT 0,
    calls_21 integer NOT NULL DEFAULT 0, calls_22 integer NOT NULL DEFAULT 0, calls_23 integer NOT NULL DEFAULT 0,
    calls_24 integer NOT NULL DEFAULT 0, calls_25 integer NOT NULL DEFAULT 0, calls_26 integer NOT NULL DEFAULT 0,
    calls_27 integer NOT NULL DEFAULT 0,
    PRIMARY KEY (promotion_id, at, step, instance)
) WITHOUT ROWID;
CREATE INDEX promotion_points_step ON promotion_points (step, at);

CREATE TABLE template_points (
    template_id integer NOT NULL,
    at          integer NOT NULL,
    step        integer NOT NULL CHECK (step <> 0),
    instance    text    NOT NULL,
    asked        integer NOT NULL DEFAULT 0,
    issued       integer NOT NULL DEFAULT 0,
    refused      integer NOT NULL DEFAULT 0,
    waiting      integer NOT NULL DEFAULT 0,
    samples      integer NOT NULL DEFAULT 0,
    PRIMARY KEY (template_id, at, step, instance)
) WITHOUT ROWID;
CREATE INDEX template_points_step ON template_points (step, at);

-- +goose Down
DROP TABLE template_points;
DROP TABLE promotion_points;
ALTER TABLE instances DROP COLUMN death_reported;
ALTER TABLE reconciliations DROP COLUMN repaired;
ALTER TABLE reconciliations DROP COLUMN drifts;
ALTER TABLE reconciliations DROP COLUMN checked;
DROP INDEX payouts_unknown_since;
