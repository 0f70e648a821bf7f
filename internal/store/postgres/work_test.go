package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// work is what the server did for calls, whatever the speed of the machine.
type work struct {
	entries int64 // read from indexes
	blocks  int64 // of tables and indexes, read or changed
}

func (w work) String() string {
	return fmt.Sprintf("%d index entries and %d blocks", w.entries, w.blocks)
}

// atMost reports whether w is within a multiple of another.
func (w work) atMost(factor int64, of work) bool {
	return w.entries <= factor*of.entries && w.blocks <= factor*of.blocks
}

// workOf returns the work of a call on a store of fresh with one connection: the server
// adds the counters of a session up when the session asks for it.
func workOf(t *testing.T, s database, call func()) work {
	t.Helper()
	total := func() (w work) {
		t.Helper()
		run(t, s, `SELECT pg_stat_force_next_flush()`)
		fixture.OK(t, s.pool.QueryRow(t.Context(), `SELECT
  (SELECT sum(idx_tup_read)::int8 FROM pg_stat_user_indexes WHERE schemaname = $1),
  (SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))::int8 FROM pg_statio_user_tables WHERE schemaname = $1)`,
			s.schema).Scan(&w.entries, &w.blocks))
		return w
	}
	before := total()
	call()
	after := total()
	return work{after.entries - before.entries, after.blocks - before.blocks}
}

// steady requires that no chunk needs more than twice the work of the first.
func steady(t *testing.T, chunks []work) {
	t.Helper()
	for n, w := range chunks {
		if !w.atMost(2, chunks[0]) {
			t.Errorf("chunk %d: %s, the first needed %s", n, w, chunks[0])
		}
	}
}

// longDue makes the payouts of payoutsOf due one after the other, from an hour ago.
const longDue = `now() - interval '1 hour' + i * interval '1 ms'`

// payoutsOf inserts payouts i of a RUNNING promotion in one state, and their counts.
func payoutsOf(t *testing.T, s database, id reward.PromotionID, state reward.State, flagged bool, n int, due string) {
	t.Helper()
	fixture.Must(s.PromotionRegister(t.Context(), []store.Registration{{ID: id, Type: reward.Point, Started: true}}, reward.Limits{}, time.Now()))(t)
	run(t, s, fmt.Sprintf(`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, first_dispatched_at, settle_from,
  dispatch, attempts, state, maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT %d, i, 0, 1, %s, now(), now(), now(), 1, 0, %d, %t, 'u', '', '', '', '' FROM generate_series(1, %d) i`,
		id, due, state, flagged, n),
		fmt.Sprintf(`UPDATE summaries SET %[1]s = %[2]d, %[1]s_amount = %[2]d WHERE promotion_id = %[3]d`, rows.CountColumns[state], n, id))
}

// TestWorkStaysTheSame counts what calls read while another session holds a snapshot from
// before, as a backup does: the server then keeps every dead index entry.
func TestWorkStaysTheSame(t *testing.T) {
	t.Parallel()
	s := fresh(t, 1)
	ctx := t.Context()
	old := fixture.Must(pgx.Connect(ctx, s.pool.Config().ConnString()))(t)
	defer func() { _ = old.Close(context.WithoutCancel(ctx)) }()
	for _, sql := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"} {
		fixture.Must(old.Exec(ctx, sql))(t)
	}

	t.Run("EachCancelledRowIsReadOnce", func(t *testing.T) {
		const id, chunks = 1, 10
		payoutsOf(t, s, id, reward.Ready, false, chunks*store.BatchMax, longDue)
		move := store.PromotionMoveParams{ID: id, From: []reward.PromotionStatus{reward.Running}, To: reward.PromotionCancelled, Now: time.Now()}
		fixture.Must(s.PromotionMove(ctx, move))(t)
		var each []work
		for range chunks {
			each = append(each, workOf(t, s, func() { cancelChunk(t, s, id, store.BatchMax) }))
		}
		steady(t, each)
	})

	t.Run("EachDispatchedRowIsReadOnce", func(t *testing.T) {
		const id, chunks = 2, lowAfter/store.BatchMax + 4
		payoutsOf(t, s, id, reward.Ready, false, chunks*store.BatchMax, longDue)
		var each []work
		for range chunks {
			each = append(each, workOf(t, s, func() {
				list, err := s.PayoutDispatch(ctx, store.PayoutDispatchParams{PromotionID: id, Limit: store.BatchMax, MaxLen: 1 << 30, Now: time.Now()})
				if err != nil || len(list) != store.BatchMax {
					t.Fatalf("%d rows, %v", len(list), err)
				}
			}))
			s.low.marks[id].scanned = time.Now().Add(time.Hour) // no scan from the start, however slow the machine is
		}
		steady(t, append(each[:1], each[lowAfter/store.BatchMax:]...)) // there is no mark before
	})

	t.Run("ASweepReadsOnlyWhatIsDue", func(t *testing.T) {
		const id = 3
		payoutsOf(t, s, id, reward.Queued, false, 5*store.BatchMax, `now() + CASE WHEN i <= 7 THEN -1 ELSE 1 END * interval '1 hour'`)
		sweep := func(want int) func() {
			return func() {
				n, err := s.PayoutSweep(ctx, store.PayoutSweepParams{PromotionID: id, Before: time.Now(), Lease: time.Second, Now: time.Now()})
				if err != nil || n != want {
					t.Fatalf("%d rows swept, want %d, %v", n, want, err)
				}
			}
		}
		few := workOf(t, s, sweep(7))
		if none := workOf(t, s, sweep(0)); few.entries > 100 || !none.atMost(1, few) {
			t.Errorf("of %d rows, a sweep of 7 needed %s, one of none %s", 5*store.BatchMax, few, none)
		}
	})

	t.Run("ABudgetReadsTheRowsThatItCountsThreeTimes", func(t *testing.T) {
		const flagged, size = 10_000, 1000
		dispatch := func(id reward.PromotionID) work {
			t.Helper()
			return workOf(t, s, func() {
				list, err := s.PayoutDispatch(ctx, store.PayoutDispatchParams{PromotionID: id, Limit: size, MaxLen: 5 * size, Now: time.Now()})
				if err != nil || len(list) != size {
					t.Fatalf("%d rows dispatched, want %d, %v", len(list), size, err)
				}
			})
		}
		payoutsOf(t, s, 4, reward.Ready, true, flagged, longDue)
		payoutsOf(t, s, 5, reward.Ready, true, flagged, longDue)
		run(t, s, fmt.Sprintf(`UPDATE promotions SET max_amount = %d WHERE id = 5`, flagged),
			`UPDATE summaries SET ready_amount = ready_amount + 1 WHERE promotion_id = 5`)
		if free, bound := dispatch(4), dispatch(5); bound.entries > free.entries+7*flagged/2 || bound.blocks > free.blocks+7*flagged {
			t.Errorf("a dispatch of %d rows needs %s, and %s with a budget that counts %d rows", size, free, bound, flagged)
		}
	})

	t.Run("AComparisonReadsEachRowOnceAndWaitsForNobody", func(t *testing.T) {
		const id, rows = 6, 10_000
		payoutsOf(t, s, id, reward.Queued, false, rows, longDue)
		if _, err := old.Exec(ctx, `COMMIT; BEGIN; SELECT 1 FROM summaries WHERE promotion_id = 6 FOR UPDATE`); err != nil { // as the record of an outcome does
			t.Fatal(err)
		}
		read := workOf(t, s, func() {
			if c, err := s.SummaryCompare(ctx, id, false); err != nil || c.Kept != c.Rows || c.Rows.Total() != rows {
				t.Errorf("%+v, %v", c, err)
			}
		})
		if read.entries > rows+100 || read.blocks > 2*rows {
			t.Errorf("a comparison of %d rows needs %s", rows, read)
		}
	})
}

// cancelChunk takes a chunk of a CANCELLED promotion out of the work.
func cancelChunk(t *testing.T, s database, id reward.PromotionID, want int) {
	t.Helper()
	n, err := s.PayoutCancelStep(t.Context(), store.PayoutCancelStepParams{PromotionID: id, Lease: time.Second, Now: time.Now()})
	if err != nil || n != want {
		t.Fatalf("a chunk of %d rows, want %d, %v", n, want, err)
	}
}

// TestACancelFindsRowsThatWereLocked: a chunk skips locked rows, and the one that
// reaches the end finds them.
func TestACancelFindsRowsThatWereLocked(t *testing.T) {
	t.Parallel()
	s := lend(t)
	ctx := t.Context()
	payoutsOf(t, s, 1, reward.Ready, false, 2500, longDue)
	run(t, s, `UPDATE promotions SET status = 'CANCELLED'`)
	holder := holding(t, s, `SELECT 1 FROM payouts WHERE target_id IN (1, 7) FOR UPDATE`)
	cancelChunk(t, s, 1, 1000)
	cancelChunk(t, s, 1, 1000)
	release(t, holder)
	cancelChunk(t, s, 1, 500)
	cancelChunk(t, s, 1, 0)
	v, err := s.PromotionGet(ctx, 1)
	if err != nil || v.Counts.Payouts[reward.Cancelled] != 2500 {
		t.Errorf("%+v, %v", v.Counts, err)
	}
}

// listRows is how many rows TestListsHaveIndexes lists.
const listRows = 30_000

// fillLists replaces the rows of the tables that are listed. Few have the state, the
// reason and the code that some filters ask for.
func fillLists(t *testing.T, s database, rows int) {
	t.Helper()
	run(t, s, `TRUNCATE promotions, summaries, payouts, payout_users, dead_letters, audit, coupons CASCADE`)
	for _, sql := range []string{
		`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at)
SELECT i, '', 'POINT', CASE WHEN i = 1 THEN 'PAUSED' ELSE 'COMPLETED' END, 0, '', '', 5, false, true, now() FROM generate_series(1, %[1]d / 10) i`,
		`INSERT INTO summaries (promotion_id, summary_id) SELECT i, 0 FROM generate_series(1, %[1]d / 10) i`,
		`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, dispatch, attempts, state,
  maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT CASE WHEN i %% 2 = 0 THEN 1 ELSE 1 + i %% (%[1]d / 10) END, i, 0, 1, now(), now(), 0, 0, CASE i %% 1000 WHEN 7 THEN 5 ELSE 4 END, false,
  '', '', '', CASE i %% 1000 WHEN 7 THEN 'A' ELSE '' END, '' FROM generate_series(1, %[1]d) i`,
		`INSERT INTO dead_letters (source, part, off, reason, detail, at, status)
SELECT 'a' || i %% 5, 0, i, CASE i %% 1000 WHEN 7 THEN 'B' ELSE 'A' END, '', now(), 'DISCARDED' FROM generate_series(1, %[1]d) i`,
		`INSERT INTO audit (id, at, actor, role, action, subject, request_id, detail)
SELECT i, now(), CASE WHEN i = 1 THEN 'rare' ELSE 'a' || i %% 9 END, 'admin', CASE WHEN i = 1 THEN 'reconcile' ELSE 'retry-payouts' END,
  '/v1/promotions/' || i %% 99, '', '' FROM generate_series(1, %[1]d) i`,
		`INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, slot, code, user_id, status)
SELECT i, 1 + i %% 2, 0, i, i, now(), 1, 'c' || i, 'u' || i, CASE i %% 1000 WHEN 7 THEN 2 ELSE 0 END FROM generate_series(1, %[1]d) i`,
	} {
		run(t, s, fmt.Sprintf(sql, rows))
	}
}

// listsStartAtOnce requires that the first page of every list, with each of its filters,
// needs little more work than its rows, among listRows.
func listsStartAtOnce(t *testing.T, filled database) {
	t.Helper()
	const limit = 20
	s := openFor(t, filled.pool.Config().ConnString(), 1)
	ctx := t.Context()
	lists := make(map[string]func() (int, error))
	promotions := func(name string, p store.PromotionListParams) {
		p.Limit = limit
		lists["promotions "+name] = func() (int, error) {
			list, err := s.PromotionList(ctx, p)
			return len(list), err
		}
	}
	promotions("", store.PromotionListParams{})
	for _, status := range []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused, reward.Completed, reward.PromotionCancelled} {
		promotions(string(status), store.PromotionListParams{Status: status})
	}
	promotions("of nobody", store.PromotionListParams{CreatedBy: "nobody"})
	payouts := func(name string, p store.PayoutListParams) {
		p.PromotionID, p.Limit = 1, limit
		lists["payouts "+name] = func() (int, error) {
			list, err := s.PayoutList(ctx, p)
			return len(list), err
		}
	}
	for _, code := range []string{"", "A", "none"} {
		payouts(code, store.PayoutListParams{Code: code})
		for state := range reward.StateCount {
			payouts(state.String()+" "+code, store.PayoutListParams{State: &state, Code: code})
		}
	}
	for _, source := range []string{"", "a2", "none"} {
		for _, reason := range []string{"", "A", "B", "none"} {
			for _, status := range []reward.DeadLetterStatus{"", reward.DeadLetterOpen, reward.DeadLetterDiscarded} {
				lists[fmt.Sprintf("dead letters %q %q %q", source, reason, status)] = func() (int, error) {
					list, err := s.DeadLetterList(ctx, store.DeadLetterListParams{Limit: limit, Source: source, Reason: reason, Status: status})
					return len(list), err
				}
			}
		}
	}
	for _, p := range []store.AuditListParams{
		{},
		{Actor: "a3"},
		{Actor: "rare"},
		{Actor: "none"},
		{Action: "reconcile"},
		{Action: "none"},
		{Subject: "/v1/promotions/7"},
		{Subject: "/v1/promotions/7/"},
		{Actor: "rare", Action: "reconcile"},
	} {
		p.Limit = limit
		lists[fmt.Sprintf("audit %+v", p)] = func() (int, error) {
			list, err := s.AuditList(ctx, p)
			return len(list), err
		}
	}
	for status := reward.CouponIssued; status <= reward.CouponHeld; status++ {
		for _, newest := range []bool{false, true} {
			for _, user := range []string{"", "u7"} {
				lists[fmt.Sprintf("coupons %s %q, newest first %t", status, user, newest)] = func() (int, error) {
					list, err := s.CouponList(ctx, store.CouponListParams{TemplateID: 2, Limit: limit, Status: &status, UserID: user, Newest: newest})
					return len(list), err
				}
			}
		}
	}
	for name, list := range lists {
		n, err := list() // plans the statement, for which the server reads too
		w := workOf(t, s, func() { n, err = list() })
		if err != nil || n > limit {
			t.Errorf("%s: %d rows, %v", name, n, err)
		}
		most := int64(20 * limit)
		if strings.HasPrefix(name, "dead letters") {
			most = 40 * limit // a comparison of rows ends a scan only where the first column differs
		}
		if w.entries > 10*limit || w.blocks > most {
			t.Errorf("%s: %d of %d rows need %s", name, n, listRows, w)
		}
	}
}
