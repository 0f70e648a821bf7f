package api

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

// faultyStore is a database of its own, whose calls fail as a test sets it.
type faultyStore struct {
	*rows.Tables

	mu      sync.Mutex       // protects what follows
	faults  map[string]error // by call
	answers []string         // that IdempotencyFinish was given
	claims  int              // calls of IdempotencyBegin

	// What tests set before the first call.
	shown   func(v *store.PromotionView) // changes the result of PromotionGet
	present []store.Instance             // the result of InstanceList, unless it is nil
}

func openStore(t testing.TB) *faultyStore {
	t.Helper()
	s := storetest.OpenFile(t, filepath.Join(t.TempDir(), "largesse.db"), sqlite.Open)
	t.Cleanup(s.Close)
	return &faultyStore{Tables: s, faults: make(map[string]error)}
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

func (s *faultyStore) Ping(ctx context.Context) error {
	if err := s.fault("Ping"); err != nil {
		return err
	}
	return s.Tables.Ping(ctx)
}

func (s *faultyStore) PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	v, err := s.Tables.PromotionGet(ctx, id)
	if fault := s.fault("PromotionGet"); fault != nil {
		return v, fault
	}
	if s.shown != nil {
		s.shown(&v)
	}
	return v, err
}

func (s *faultyStore) PayoutSave(ctx context.Context, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	if err := s.fault("PayoutSave"); err != nil {
		return store.PayoutSaveResult{}, err
	}
	return s.Tables.PayoutSave(ctx, p)
}

// PayoutList fails after the first page.
func (s *faultyStore) PayoutList(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error) {
	if p.Limit < 1 || p.Limit > store.BatchMax {
		return nil, errors.New("a page out of bounds")
	}
	if err := s.fault("PayoutList"); err != nil && p.After != nil {
		return nil, err
	}
	return s.Tables.PayoutList(ctx, p)
}

func (s *faultyStore) InstanceList(ctx context.Context) ([]store.Instance, error) {
	if err := s.fault("InstanceList"); err != nil || s.present != nil {
		return s.present, err
	}
	return s.Tables.InstanceList(ctx)
}

func (s *faultyStore) AuditBegin(ctx context.Context, l store.AuditLine) error {
	if err := s.fault("AuditBegin"); err != nil {
		return err
	}
	return s.Tables.AuditBegin(ctx, l)
}

func (s *faultyStore) IdempotencyBegin(ctx context.Context, p store.IdempotencyBeginParams) (store.IdempotencyRecord, error) {
	s.mu.Lock()
	s.claims++
	s.mu.Unlock()
	return s.Tables.IdempotencyBegin(ctx, p)
}

func (s *faultyStore) IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error) {
	s.mu.Lock()
	s.answers = append(s.answers, string(answer))
	s.mu.Unlock()
	if err := s.fault("IdempotencyFinish"); err != nil {
		return false, err
	}
	return s.Tables.IdempotencyFinish(ctx, key, begunAt, answer)
}

// audit returns the entries of the audit with an action, or all for "", oldest first.
func (s *faultyStore) audit(t *testing.T, action string) []store.AuditLine {
	t.Helper()
	lines := fixture.Must(s.AuditList(t.Context(), store.AuditListParams{Limit: 1000, Action: action}))(t)
	slices.Reverse(lines)
	return lines
}

// promotion creates a promotion of 5 points per target, and moves it to a status.
func (s *faultyStore) promotion(t *testing.T, id reward.PromotionID, status reward.PromotionStatus, edit ...func(*reward.Promotion)) {
	t.Helper()
	p := reward.Promotion{ID: id, Name: "x", Type: reward.Point, Amount: 5, MaxRetries: 5, CreatedAt: time.Now()}
	for _, e := range edit {
		e(&p)
	}
	fixture.Must(s.PromotionCreate(t.Context(), p))(t)
	for _, to := range map[reward.PromotionStatus][]reward.PromotionStatus{
		reward.Running: {reward.Running}, reward.Paused: {reward.Running, reward.Paused}, reward.Completed: {reward.Running},
		reward.PromotionCancelled: {reward.PromotionCancelled},
	}[status] {
		from := []reward.PromotionStatus{reward.Draft, reward.Running}
		fixture.Must(s.PromotionMove(t.Context(), store.PromotionMoveParams{ID: id, From: from, To: to, Now: time.Now()}))(t)
	}
	if status == reward.Completed {
		s.complete(t, id)
	}
}

// complete ends a RUNNING promotion.
func (s *faultyStore) complete(t *testing.T, id reward.PromotionID) {
	t.Helper()
	fixture.Must(s.PromotionClose(t.Context(), id))(t)
	if done := fixture.Must(s.PromotionComplete(t.Context(), id, 0, time.Now()))(t); !done {
		t.Fatalf("promotion %s does not end", id)
	}
}

// queued is the kind of no outcome.
const queued rules.OutcomeKind = -1

// pay saves a payout of 5 for each outcome, in summary 3 of a RUNNING promotion, and ends
// it with that outcome. A payout that is queued stays so.
func (s *faultyStore) pay(t *testing.T, id reward.PromotionID, now time.Time, outcomes ...rules.Outcome) {
	t.Helper()
	for part := range slices.Chunk(outcomes, store.BatchMax) {
		rows := make([]store.NewPayout, len(part))
		for i := range part {
			part[i].PromotionID, part[i].Dispatch = id, 1
			rows[i] = store.NewPayout{PromotionID: id, TargetID: part[i].TargetID, SummaryID: 3, UserID: "u", Amount: 5}
		}
		fixture.Must(s.PayoutSave(t.Context(), store.PayoutSaveParams{Rows: rows, MaxLen: 2 * store.BatchMax, Now: now}))(t)
		fixture.Must(s.PayoutFinish(t.Context(), store.PayoutFinishParams{Outcomes: part, Now: now}))(t)
	}
}

// ended is the outcome of a target.
func ended(target reward.TargetID, kind rules.OutcomeKind, code string) rules.Outcome {
	return rules.Outcome{Ref: reward.Ref{TargetID: target}, Kind: kind, Code: code}
}
