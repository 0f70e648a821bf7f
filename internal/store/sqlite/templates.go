package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store/rows"
)

func scanTemplate(found *sql.Rows) (t reward.CouponTemplate, err error) {
	err = rows.ScanTemplate(found.Scan, &t)
	return t, err
}

// activeTemplates reads the templates that close after ?1 or never close.
const activeTemplates = `SELECT ` + rows.TemplateColumns + ` FROM coupon_templates t WHERE t.id IN (SELECT id FROM coupon_templates WHERE closes_at > ?1
UNION ALL SELECT id FROM coupon_templates WHERE closes_at IS NULL) ORDER BY t.id`

// TemplateActive returns the templates that are not closed yet.
func (s *Store) TemplateActive(ctx context.Context, closedAfter time.Time) ([]reward.CouponTemplate, error) {
	list, err := collect(ctx, s.reader.as("list active coupon templates"), scanTemplate, activeTemplates, micros(closedAfter))
	if err != nil {
		return nil, fmt.Errorf("list active coupon templates: %w", err)
	}
	return list, nil
}
