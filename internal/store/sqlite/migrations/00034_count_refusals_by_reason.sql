-- +goose Up
-- Requests of refused, by the reason. Those of earlier versions, and of another reason,
-- are in none of these.
ALTER TABLE template_points ADD COLUMN refused_sold_out INTEGER NOT NULL DEFAULT 0;
ALTER TABLE template_points ADD COLUMN refused_user_limit INTEGER NOT NULL DEFAULT 0;
ALTER TABLE template_points ADD COLUMN refused_not_open INTEGER NOT NULL DEFAULT 0;
ALTER TABLE template_points ADD COLUMN refused_closed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE template_points ADD COLUMN refused_hold_lapsed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE template_points ADD COLUMN refused_not_drawn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE template_points ADD COLUMN refused_error INTEGER NOT NULL DEFAULT 0;
ALTER TABLE template_points ADD COLUMN refused_archived INTEGER NOT NULL DEFAULT 0;
ALTER TABLE template_points ADD COLUMN refused_unavailable INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE template_points DROP COLUMN refused_unavailable;
ALTER TABLE template_points DROP COLUMN refused_archived;
ALTER TABLE template_points DROP COLUMN refused_error;
ALTER TABLE template_points DROP COLUMN refused_not_drawn;
ALTER TABLE template_points DROP COLUMN refused_hold_lapsed;
ALTER TABLE template_points DROP COLUMN refused_closed;
ALTER TABLE template_points DROP COLUMN refused_not_open;
ALTER TABLE template_points DROP COLUMN refused_user_limit;
ALTER TABLE template_points DROP COLUMN refused_sold_out;
