-- +goose NO TRANSACTION
-- As in 00002, each statement can be repeated.

-- +goose Up
-- The payouts of each user. An index on payouts would get an entry with every
-- change of state: saving, dispatching and finishing a payout would then take 1.5
-- times the work. A row that is written here once costs 1.15 times.
-- Nothing here is unique, so nothing here can prevent the save of a payout. A
-- reader ignores duplicates and reads the payout itself.
CREATE TABLE IF NOT EXISTS payout_users (
    promotion_id bigint NOT NULL,
    target_id    bigint NOT NULL,
    user_id      text   COLLATE "C" NOT NULL
);
-- Without a replica identity, a publication of all tables would make deletes of
-- payouts fail.
ALTER TABLE payout_users REPLICA IDENTITY FULL;
CREATE INDEX IF NOT EXISTS payout_users_user ON payout_users (user_id, promotion_id DESC, target_id);

-- Triggers maintain it. They cost no more than a part of the INSERT of payouts
-- would. They also cover running instances of the previous version, which do not
-- know this table.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION payout_users_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO payout_users (promotion_id, target_id, user_id)
        SELECT c.promotion_id, c.target_id, c.user_id FROM changed c WHERE c.user_id <> '';
    ELSE
        DELETE FROM payout_users u USING changed c
        WHERE u.user_id = c.user_id COLLATE "C" AND u.promotion_id = c.promotion_id AND u.target_id = c.target_id;
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE OR REPLACE TRIGGER payout_users_add AFTER INSERT ON payouts
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION payout_users_keep();
CREATE OR REPLACE TRIGGER payout_users_remove AFTER DELETE ON payouts
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION payout_users_keep();

-- Payouts that were saved before the triggers existed. This reads the whole table
-- and locks no row.
-- +goose StatementBegin
DO $$
BEGIN
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_hashjoin = on;
    INSERT INTO payout_users (promotion_id, target_id, user_id)
    SELECT p.promotion_id, p.target_id, p.user_id FROM payouts p
    WHERE p.user_id <> '' AND NOT EXISTS (SELECT 1 FROM payout_users u
        WHERE u.user_id = p.user_id COLLATE "C" AND u.promotion_id = p.promotion_id AND u.target_id = p.target_id)
    ORDER BY p.user_id COLLATE "C", p.promotion_id DESC, p.target_id;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER IF EXISTS payout_users_remove ON payouts;
DROP TRIGGER IF EXISTS payout_users_add ON payouts;
DROP FUNCTION IF EXISTS payout_users_keep();
DROP TABLE IF EXISTS payout_users;
