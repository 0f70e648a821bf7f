package api

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

// faultyStore is a database of its own, whose calls fail as a test sets it.
type faultyStore struct {
	*sqlite.Store

	mu      sync.Mutex       // protects what follows
	faults  map[string]error // by call
	answers []string         // that IdempotencyFinish was given
}

func openStore(t testing.TB) *faultyStore {
	t.Helper()
	s := storetest.OpenFile(t, filepath.Join(t.TempDir(), "largesse.db"), sqlite.Open)
	t.Cleanup(s.Close)
	return &faultyStore{Store: s, faults: make(map[string]error)}
}

// fail sets the answer of all calls of a method; nil lets the database answer again.
func (s *faultyStore) fail(call string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[call] = err
}

func (s *faultyStore) fault(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults[call]
}

func (s *faultyStore) AuditBegin(ctx context.Context, l store.AuditLine) error {
	if err := s.fault("AuditBegin"); err != nil {
		return err
	}
	return s.Store.AuditBegin(ctx, l)
}

func (s *faultyStore) IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error) {
	s.mu.Lock()
	s.answers = append(s.answers, string(answer))
	s.mu.Unlock()
	if err := s.fault("IdempotencyFinish"); err != nil {
		return false, err
	}
	return s.Store.IdempotencyFinish(ctx, key, begunAt, answer)
}

// audit returns the entries of the audit with an action, or all for "", oldest first.
func (s *faultyStore) audit(t *testing.T, action string) []store.AuditLine {
	t.Helper()
	lines := fixture.Must(s.AuditList(t.Context(), store.AuditListParams{Limit: 1000, Action: action}))(t)
	slices.Reverse(lines)
	return lines
}
