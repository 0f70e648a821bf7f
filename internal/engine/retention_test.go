package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

// newRows returns a database at path that has all tables.
func newRows(t *testing.T, path string) *rows.Tables {
	t.Helper()
	s := storetest.OpenFile(t, path, sqlite.Open)
	t.Cleanup(s.Close)
	return s
}

// TestRetention stores audit entries and dead letters older and newer than the settings
// allow, more than a transaction removes, and removes the old ones. Open dead letters
// stay, and with zero settings everything does.
func TestRetention(t *testing.T) {
	t.Parallel()
	rows := newRows(t, filepath.Join(t.TempDir(), "rows.db"))
	const old, fresh = 2*retentionBatch + 1, 7
	now := time.Now()
	for id := range int64(old + fresh) {
		at := now.Add(-2 * time.Hour)
		if id >= old {
			at = now
		}
		fixture.OK(t, rows.AuditBegin(t.Context(), store.AuditLine{ID: id + 1, At: at}))
	}
	letters := make([]reward.DeadLetter, 4)
	for i := range letters {
		letters[i] = reward.DeadLetter{Source: "topic", Partition: int32(i), Offset: "0", At: now.Add(-3 * time.Hour)}
	}
	fixture.OK(t, rows.DeadLetterAdd(t.Context(), letters))
	for id, closed := range map[int64]struct {
		to reward.DeadLetterStatus
		at time.Time
	}{1: {reward.DeadLetterReplayed, now.Add(-2 * time.Hour)}, 2: {reward.DeadLetterDiscarded, now.Add(-2 * time.Hour)}, 3: {reward.DeadLetterReplayed, now}} {
		fixture.Must(rows.DeadLetterClose(t.Context(), []int64{id}, closed.to, "ann", closed.at))(t)
	}
	left := func() (audit, dead int) {
		lines := fixture.Must(rows.AuditList(t.Context(), store.AuditListParams{Limit: old + fresh}))(t)
		list := fixture.Must(rows.DeadLetterList(t.Context(), store.DeadLetterListParams{Limit: 10}))(t)
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
		fixture.OK(t, r.round(t.Context()))
		if audit, dead := left(); audit != tt.audit || dead != tt.dead {
			t.Errorf("%+v: %d audit entries and %d dead letters are left, want %d and %d", tt.periods, audit, dead, tt.audit, tt.dead)
		}
	}
}

// TestRetentionOfPayouts ends promotions long ago and recently, with more payouts than a
// transaction removes, and removes those of the old ones. It crashes after a part, and
// continues. One with an UNKNOWN payout keeps everything.
func TestRetentionOfPayouts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rows := newRows(t, filepath.Join(t.TempDir(), "rows.db"))
	now := time.Now()
	const targets = retentionBatch + 1
	for id, ended := range map[reward.PromotionID]time.Time{1: now.Add(-50 * time.Hour), 2: now.Add(-time.Hour), 3: now.Add(-50 * time.Hour)} {
		fixture.Must(rows.PromotionRegister(ctx, []store.Registration{{ID: id, Type: reward.Point, Started: true}}, reward.Limits{}, ended))(t)
		all := make([]store.NewPayout, targets)
		var outcomes []rules.Outcome
		for i := range all {
			target := reward.TargetID(i)
			all[i] = store.NewPayout{PromotionID: id, TargetID: target, Amount: 5}
			o := rules.Outcome{Ref: reward.Ref{PromotionID: id, TargetID: target, Dispatch: 1}, Kind: rules.OutcomePaid, TransactionKey: "t"}
			if i == 7 && id == 3 {
				o.Kind = rules.OutcomeNoLookup // UNKNOWN
			}
			outcomes = append(outcomes, o)
		}
		for part := range slices.Chunk(all, store.BatchMax) {
			fixture.Must(rows.PayoutSave(ctx, store.PayoutSaveParams{Rows: part, MaxLen: targets, Now: ended}))(t)
		}
		for part := range slices.Chunk(outcomes, store.BatchMax) {
			fixture.Must(rows.PayoutFinish(ctx, store.PayoutFinishParams{Outcomes: part, Now: ended}))(t)
		}
		fixture.Must(rows.PromotionComplete(ctx, id, time.Minute, ended))(t)
		v := fixture.Must(rows.PromotionGet(ctx, id))(t)
		fixture.Must(rows.PromotionStreamDestroyed(ctx, id, v.LastDispatchedAt))(t)
	}
	left := func() (n [4]int) {
		for id := range reward.PromotionID(4) {
			p := store.PayoutListParams{PromotionID: id, Limit: store.BatchMax}
			for {
				page := fixture.Must(rows.PayoutList(ctx, p))(t)
				n[id] += len(page)
				if len(page) < p.Limit {
					break
				}
				p.After = &page[len(page)-1].TargetID
			}
		}
		return n
	}
	fixture.OK(t, (&retention{rows: rows}).round(ctx))
	if got := left(); got != [4]int{0, targets, targets, targets} {
		t.Fatalf("without a period, %v payouts are left", got)
	}
	stopped, stop := context.WithCancel(ctx)
	r := &retention{rows: &stoppingStore{rows, stop}, periods: config.Retention{Payouts: 25 * time.Hour}}
	if err := r.round(stopped); err == nil {
		t.Fatal("the round that was stopped reports success")
	}
	if got := left(); got != [4]int{0, targets - retentionBatch, targets, targets} {
		t.Fatalf("after the crash, %v payouts are left", got)
	}
	r.rows = rows
	for range 2 {
		fixture.OK(t, r.round(ctx))
		if got := left(); got != [4]int{0, 0, targets, targets} {
			t.Fatalf("%v payouts are left", got)
		}
	}
	for id, archived := range map[reward.PromotionID]bool{1: true, 2: false, 3: false} {
		v := fixture.Must(rows.PromotionGet(ctx, id))(t)
		if v.ArchivedAt.IsZero() == archived || v.Counts.Total() != targets || v.Counts.AmountTotal() != 5*targets {
			t.Errorf("promotion %d: archived at %v, counts %+v", id, v.ArchivedAt, v.Counts)
		}
	}
}

// stoppingStore stops its caller after a page of payouts was removed.
type stoppingStore struct {
	*rows.Tables
	stop context.CancelFunc
}

func (s *stoppingStore) PayoutForget(ctx context.Context, p store.PayoutForgetParams) (store.PayoutForgotten, error) {
	page, err := s.Tables.PayoutForget(ctx, p)
	s.stop()
	return page, err
}

// removedGates records which gates are removed. It fails for a template.
type removedGates struct {
	fails reward.TemplateID
	ids   []reward.TemplateID
}

func (g *removedGates) Remove(_ context.Context, id reward.TemplateID) error {
	if id == g.fails {
		return context.DeadlineExceeded
	}
	g.ids = append(g.ids, id)
	return nil
}

// TestRetentionOfCoupons closes templates long ago and recently, with more coupons than a
// transaction removes, and removes those of the old ones, after their gates. Redis fails
// first for one of them, which does not stop the other. Then the process crashes after a
// part, and continues. A template with a coupon that never expires keeps everything.
func TestRetentionOfCoupons(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rows := newRows(t, filepath.Join(t.TempDir(), "rows.db"))
	now := time.Now()
	const coupons = retentionBatch + 1
	for id, closed := range map[reward.TemplateID]time.Time{1: now.Add(-90 * time.Hour), 2: now.Add(-time.Hour), 3: now.Add(-90 * time.Hour), 4: now.Add(-80 * time.Hour)} {
		template := reward.CouponTemplate{
			ID: id, Name: "drop", TotalQuantity: coupons, PerUserLimit: 1, Mode: reward.ModeStream, WhenRedisAway: reward.FallbackDatabase,
			ClosesAt: closed, ValidFor: time.Hour, CreatedAt: closed,
		}
		if id == 3 {
			template.ValidFor = 0
		}
		_, err := rows.TemplateCreate(ctx, template)
		fixture.OK(t, err)
		var all []rules.CouponRequest
		for n := range int64(coupons) {
			number := int64(id)*10_000 + n
			all = append(all, rules.CouponRequest{UserID: fmt.Sprint(n), Ticket: n + 1, CouponID: reward.CouponID(number), Code: fmt.Sprint(number)})
		}
		for part := range slices.Chunk(all, store.BatchMax) {
			_, err = rows.CouponSettle(ctx, store.CouponSettleParams{TemplateID: id, Kind: rules.SettleInOrder, Requests: part, Now: closed.Add(-2 * time.Hour)})
			fixture.OK(t, err)
		}
	}
	left := func() (n [5]int64) {
		for id := reward.TemplateID(1); id <= 4; id++ {
			fixture.OK(t, rows.CouponSnapshot(ctx, id, func(reward.CouponTemplate) error { return nil }, func(page []store.CouponHolding) error {
				n[id] += int64(len(page))
				return nil
			}))
		}
		return n
	}
	gates := &removedGates{fails: 1}
	fixture.OK(t, (&retention{rows: rows, gate: gates}).round(ctx))
	r := &retention{rows: rows, gate: gates, periods: config.Retention{Coupons: 72 * time.Hour}}
	if err := r.round(ctx); err == nil {
		t.Fatal("the round reports success although the gate is not removed")
	}
	if got := left(); got != [5]int64{0, coupons, coupons, coupons, 0} {
		t.Fatalf("%v coupons are left", got)
	}
	gates.fails = 0
	stopped, stop := context.WithCancel(ctx)
	r.rows = &stoppingStore{rows, stop}
	if err := r.round(stopped); err == nil {
		t.Fatal("the round that was stopped reports success")
	}
	if got := left(); got != [5]int64{0, coupons - retentionBatch, coupons, coupons, 0} {
		t.Fatalf("after the crash, %v coupons are left", got)
	}
	r.rows = rows
	for range 2 {
		fixture.OK(t, r.round(ctx))
		if got := left(); got != [5]int64{0, 0, coupons, coupons, 0} {
			t.Fatalf("%v coupons are left", got)
		}
	}
	if !slices.Equal(gates.ids, []reward.TemplateID{4, 1, 1}) {
		t.Errorf("the gates of %v are removed, want that of template 4, and that of template 1 in each round until nothing is left", gates.ids)
	}
	for id, archived := range map[reward.TemplateID]bool{1: true, 2: false, 3: false, 4: true} {
		v := fixture.Must(rows.TemplateGet(ctx, id))(t)
		if v.ArchivedAt.IsZero() == archived || v.Live != coupons || v.IssuedTotal != coupons {
			t.Errorf("template %d: archived at %v, %d live, %d issued", id, v.ArchivedAt, v.Live, v.IssuedTotal)
		}
	}
}

func (s *stoppingStore) TemplateForget(ctx context.Context, p store.TemplateForgetParams) (store.TemplateForgotten, error) {
	page, err := s.Tables.TemplateForget(ctx, p)
	s.stop()
	return page, err
}

// TestAnInstanceRemovesOldCoupons starts an instance as an operator does. Its first round
// archives the template, and removes its gate and its coupon.
func TestAnInstanceRemovesOldCoupons(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cfg := config.Default()
	cfg.Data.Dir, cfg.Money.URL, cfg.Retention.Coupons = t.TempDir(), "http://127.0.0.1:9", 72*time.Hour
	rows := fixture.Must(sqlite.Open(ctx, parts.SQLitePath(cfg)))(t)
	fixture.OK(t, rows.Migrate(ctx))
	closed := time.Now().Add(-90 * time.Hour)
	fixture.Must(rows.TemplateCreate(ctx, reward.CouponTemplate{
		ID: 1, Name: "drop", TotalQuantity: 1, PerUserLimit: 1, Mode: reward.ModeStream, WhenRedisAway: reward.FallbackDatabase,
		ClosesAt: closed, ValidFor: time.Hour, CreatedAt: closed,
	}))(t)
	fixture.Must(rows.CouponSettle(ctx, store.CouponSettleParams{
		TemplateID: 1, Kind: rules.SettleInOrder, Now: closed.Add(-2 * time.Hour),
		Requests: []rules.CouponRequest{{UserID: "ann", Ticket: 1, CouponID: 1, Code: "one"}},
	}))(t)
	rows.Close()

	var lines fixture.Buffer
	log := fixture.Must(obs.NewLog(&lines, "info", "text"))(t)
	e := start(t, cfg, log, WithoutListener())
	fixture.Until(t, "the old rows are removed", func() bool { return strings.Contains(lines.String(), "old rows removed") })
	row := fixture.Must(e.store.TemplateGet(ctx, 1))(t)
	if row.ArchivedAt.IsZero() || row.IssuedTotal != 1 {
		t.Errorf("archived at %v with %d issued", row.ArchivedAt, row.IssuedTotal)
	}
}

// slowLooks takes a minute to see that a template is not over. The first look fails.
type slowLooks struct {
	retainedRows
	looks int
}

func (s *slowLooks) Clock(context.Context) (time.Time, error) { return time.Now(), nil }

func (s *slowLooks) TemplateEnded(context.Context, time.Time, store.EndedTemplate, int) ([]store.EndedTemplate, error) {
	return []store.EndedTemplate{{ID: 1}}, nil
}

func (s *slowLooks) TemplateArchive(context.Context, reward.TemplateID, time.Time, time.Time) (bool, error) {
	s.looks++
	time.Sleep(time.Minute)
	if s.looks == 1 {
		return false, errors.New("the connection broke")
	}
	return s.looks == 4, nil
}

func (s *slowLooks) TemplateGet(context.Context, reward.TemplateID) (reward.CouponTemplate, error) {
	return reward.CouponTemplate{ID: 1, Granted: 5, Used: 2}, nil
}

func (s *slowLooks) TemplateForget(context.Context, store.TemplateForgetParams) (store.TemplateForgotten, error) {
	return store.TemplateForgotten{}, nil
}

// TestRetentionRestsAfterALongLook has a template that takes a minute to look at. It is
// looked at a hundredth of the time, not in each round, until it is archived. The log
// says once what keeps it.
func TestRetentionRestsAfterALongLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := &slowLooks{}
		var lines strings.Builder
		log := fixture.Must(obs.NewLog(&lines, "info", "text"))(t)
		r := &retention{rows: rows, gate: &removedGates{}, periods: config.Retention{Coupons: time.Hour}, log: log}
		for began := time.Now(); rows.looks < 4; time.Sleep(retentionInterval) {
			if err := r.round(t.Context()); err != nil && rows.looks != 1 {
				t.Fatal(err)
			}
			if since := time.Since(began); rows.looks > 1+int(since/(lookRest*time.Minute)) || since > 7*time.Hour {
				t.Fatalf("%d looks within %v", rows.looks, since)
			}
		}
		if len(r.looks) != 0 {
			t.Errorf("still waits to look at %v", r.looks)
		}
		if said := lines.String(); strings.Count(said, "places=3") != 1 || strings.Count(said, "release-places") != 1 {
			t.Errorf("logged %s", said)
		}
	})
}
