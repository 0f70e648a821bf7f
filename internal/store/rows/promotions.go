package rows

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// PromotionStreamDestroyed marks the stream of a final promotion as destroyed.
func (t *Tables) PromotionStreamDestroyed(ctx context.Context, id reward.PromotionID, lastDispatchedAt time.Time) (bool, error) {
	return t.change(ctx, "mark a stream as destroyed", `UPDATE promotions SET stream_gone = true
WHERE id = $1 AND status IN ('COMPLETED', 'CANCELLED') AND last_dispatched_at IS NOT DISTINCT FROM CAST($2 AS timestamptz)
  AND NOT stream_gone RETURNING id`, int64(id), orNull(lastDispatchedAt))
}

// OffsetsGet returns the next offsets stored for a log, by partition.
func (t *Tables) OffsetsGet(ctx context.Context, log string) (map[int32]int64, error) {
	var offsets map[int32]int64
	err := t.db.Read(ctx, "read offsets", func() Statement {
		offsets = make(map[int32]int64)
		return Statement{SQL: `SELECT part, next FROM kafka_offsets WHERE topic = $1`, Args: []any{log}, Row: func(scan Scan) error {
			var part int32
			var next int64
			err := scan(&part, &next)
			offsets[part] = next
			return err
		}}
	})
	if err != nil {
		return nil, err
	}
	return offsets, nil
}
