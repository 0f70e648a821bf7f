package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TestABusyDatabaseIsUnavailable checks what a call fails with that waited too long for
// other transactions: an error that says to try again.
func TestABusyDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	save := func(ctx context.Context, s database) error {
		return s.ReconciliationSave(ctx, store.Reconciliation{ID: 1, Report: []byte("{}"), At: time.Now()})
	}
	wantBusy := func(t *testing.T, err error) {
		t.Helper()
		if reward.KindOf(err) != reward.KindUnavailable {
			t.Errorf("got %v (%s), want %s", err, reward.KindOf(err), reward.KindUnavailable)
		}
	}

	t.Run("AnotherProcessWrites", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "rows.db")
		s := openAt(t, path)
		other := fixture.Must(sql.Open("sqlite", dsn(path, "_txlock=immediate")))(t)
		t.Cleanup(func() { other.Close() })
		tx := fixture.Must(other.BeginTx(t.Context(), nil))(t)
		fixture.Must(s.writer.ExecContext(t.Context(), `PRAGMA busy_timeout = 1`))(t)
		wantBusy(t, save(t.Context(), s))
		fixture.OK(t, tx.Rollback())
		if err := save(t.Context(), s); err != nil {
			t.Error(err)
		}
	})

	t.Run("ThisProcessWrites", func(t *testing.T) {
		t.Parallel()
		s := openAt(t, filepath.Join(t.TempDir(), "rows.db"))
		writing, release, ended := make(chan struct{}), make(chan struct{}), make(chan error)
		go func() {
			ended <- s.write(t.Context(), "test", func(*tx) error {
				close(writing)
				<-release
				return nil
			})
		}()
		<-writing
		short, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Millisecond)) // it passes while the call waits
		defer cancel()
		wantBusy(t, save(short, s))
		wantBusy(t, s.write(short, "test", func(*tx) error { return nil }))
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := save(gone, s); reward.KindOf(err) == reward.KindUnavailable {
			t.Errorf("the caller has gone: %v", err)
		}
		close(release)
		fixture.OK(t, <-ended)
		if err := save(t.Context(), s); err != nil {
			t.Error(err)
		}
	})

	t.Run("ThisProcessReads", func(t *testing.T) {
		t.Parallel()
		s := openAt(t, filepath.Join(t.TempDir(), "rows.db"))
		for range readersMax {
			conn := fixture.Must(s.reader.Conn(t.Context()))(t)
			t.Cleanup(func() { conn.Close() })
		}
		short, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Millisecond)) // it passes while the call waits
		defer cancel()
		_, err := s.PromotionGet(short, 1)
		wantBusy(t, err)
	})
}
