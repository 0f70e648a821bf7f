-- +goose Up
-- The latest change of each promotion or its counts, for PromotionChanges. A new
-- number is above all earlier ones. One transaction writes at a time, so changes
-- become visible in the order of their numbers: a reader that has seen a number
-- has seen all lower ones.
CREATE TABLE changes (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    promotion_id INTEGER NOT NULL UNIQUE REFERENCES promotions (id) ON DELETE CASCADE
) STRICT;

-- +goose StatementBegin
CREATE TRIGGER changes_promotion_new AFTER INSERT ON promotions BEGIN
    INSERT INTO changes (promotion_id) VALUES (NEW.id);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER changes_promotion AFTER UPDATE ON promotions BEGIN
    DELETE FROM changes WHERE promotion_id = NEW.id;
    INSERT INTO changes (promotion_id) VALUES (NEW.id);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER changes_counts_new AFTER INSERT ON summaries WHEN NEW.summary_id = 0 BEGIN
    DELETE FROM changes WHERE promotion_id = NEW.promotion_id;
    INSERT INTO changes (promotion_id) VALUES (NEW.promotion_id);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER changes_counts AFTER UPDATE ON summaries WHEN NEW.summary_id = 0 BEGIN
    DELETE FROM changes WHERE promotion_id = NEW.promotion_id;
    INSERT INTO changes (promotion_id) VALUES (NEW.promotion_id);
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER changes_counts;
DROP TRIGGER changes_counts_new;
DROP TRIGGER changes_promotion;
DROP TRIGGER changes_promotion_new;
DROP TABLE changes;
