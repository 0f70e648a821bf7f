package rows

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// Both statements look at the oldest rows only, by an index in the order of their IDs, so
// their cost and the locks they hold are bounded by $2 whatever the size of the table.
const (
	forgetAudit   = `DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id > 0 ORDER BY id LIMIT $2) AND at < $1 RETURNING id`
	forgetLetters = `DELETE FROM dead_letters WHERE id IN (SELECT id FROM dead_letters WHERE status = $3 ORDER BY id LIMIT $2) AND settled_at < $1 RETURNING id`
)

// AuditForget removes old lines of the audit.
func (t *Tables) AuditForget(ctx context.Context, before time.Time, limit int) (int, error) {
	return t.remove(ctx, "forget audit lines", forgetAudit, before, limit)
}

// DeadLetterForget removes old dead letters with a status.
func (t *Tables) DeadLetterForget(ctx context.Context, status reward.DeadLetterStatus, before time.Time, limit int) (int, error) {
	if status == reward.DeadLetterOpen {
		return 0, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "a dead letter that is open cannot be forgotten")
	}
	return t.remove(ctx, "forget dead letters", forgetLetters, before, limit, string(status))
}

// remove runs a statement that returns the IDs of the rows that it removes.
func (t *Tables) remove(ctx context.Context, what, sql string, before time.Time, limit int, more ...any) (int, error) {
	var removed []int64
	err := t.db.Write(ctx, what, func() []Statement {
		removed = nil
		read := into(&removed, func(scan Scan, id *int64) error { return scan(id) })
		return []Statement{{SQL: sql, Args: append([]any{before, max(limit, 0)}, more...), Row: read}}
	})
	return len(removed), err
}
