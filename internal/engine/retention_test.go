package engine

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/sqlite"
)

// TestRetention stores audit entries and dead letters older and newer than the settings
// allow, more than a transaction removes, and removes the old ones. Open dead letters
// stay, and with zero settings everything does.
func TestRetention(t *testing.T) {
	t.Parallel()
	rows, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "largesse.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if err := rows.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const old, fresh = 2*retentionBatch + 1, 7
	now := time.Now()
	for id := range int64(old + fresh) {
		at := now.Add(-2 * time.Hour)
		if id >= old {
			at = now
		}
		if err := rows.AuditBegin(t.Context(), store.AuditLine{ID: id + 1, At: at}); err != nil {
			t.Fatal(err)
		}
	}
	letters := make([]reward.DeadLetter, 4)
	for i := range letters {
		letters[i] = reward.DeadLetter{Source: "topic", Partition: int32(i), Offset: "0", At: now.Add(-3 * time.Hour)}
	}
	if err := rows.DeadLetterAdd(t.Context(), letters); err != nil {
		t.Fatal(err)
	}
	for id, closed := range map[int64]struct {
		to reward.DeadLetterStatus
		at time.Time
	}{1: {reward.DeadLetterReplayed, now.Add(-2 * time.Hour)}, 2: {reward.DeadLetterDiscarded, now.Add(-2 * time.Hour)}, 3: {reward.DeadLetterReplayed, now}} {
		if _, err := rows.DeadLetterClose(t.Context(), []int64{id}, closed.to, "ann", closed.at); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (audit, dead int) {
		lines, err := rows.AuditList(t.Context(), store.AuditListParams{Limit: old + fresh})
		if err != nil {
			t.Fatal(err)
		}
		list, err := rows.DeadLetterList(t.Context(), store.DeadLetterListParams{Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		return len(lines), len(list)
	}
	for _, tt := range []struct {
		periods     config.Retention
		audit, dead int
	}{
		{config.Retention{}, old + fresh, 4},
		{config.Retention{Audit: time.Hour}, fresh, 4},
		{config.Retention{Audit: time.Hour, DeadLetters: time.Hour}, fresh, 2},
	} {
		r := &retention{rows: rows, periods: tt.periods}
		if err := r.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if audit, dead := left(); audit != tt.audit || dead != tt.dead {
			t.Errorf("%+v: %d audit entries and %d dead letters are left, want %d and %d", tt.periods, audit, dead, tt.audit, tt.dead)
		}
	}
}
