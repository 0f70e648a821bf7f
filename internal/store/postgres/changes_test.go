package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/storetest"
)

// registered returns a store with RUNNING promotions from 1 to n.
func registered(t testing.TB, n int) *Store {
	t.Helper()
	s := lend(t)
	for from := 1; from <= n; from += store.BatchMax {
		var rs []store.Registration
		for id := from; id <= min(n, from+store.BatchMax-1); id++ {
			rs = append(rs, store.Registration{ID: reward.PromotionID(id), Type: reward.Point, Started: true})
		}
		if _, err := s.PromotionRegister(t.Context(), rs, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestACancelThatCommitsLateIsFollowed: a cancel gets its transaction ID and
// waits. Another change gets a higher one and commits, and a reader sees it. The
// cancel commits. The reader must hear of it.
func TestACancelThatCommitsLateIsFollowed(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string][]string{
		"": {`UPDATE promotions SET status = 'CANCELLED' WHERE id = 1`},
		"InASubtransaction": {
			`SELECT pg_current_xact_id()`, `SAVEPOINT a`, `SAVEPOINT b`,
			`UPDATE promotions SET status = 'CANCELLED' WHERE id = 1`, `RELEASE b`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := registered(t, 2), t.Context()
			var f storetest.Follower
			follow := func() {
				t.Helper()
				if err := f.Follow(ctx, s); err != nil {
					t.Fatal(err)
				}
			}
			follow()
			late, err := s.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = late.Rollback(ctx) }()
			if _, err := late.Exec(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
				t.Fatal(err)
			}
			for _, sql := range begin {
				if _, err := late.Exec(ctx, sql); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 { // each gets a higher ID, and a reader sees it
				if _, err := s.PromotionClose(ctx, 2); err != nil {
					t.Fatal(err)
				}
				follow()
				if f.Read != 1 || !f.Views[2].Closed || f.Views[1].Status != reward.Running {
					t.Fatalf("%d promotions read: %+v", f.Read, f.Views)
				}
				if follow(); f.Read != 0 { // an open transaction, even of another database, repeats no change
					t.Fatalf("%d promotions read again", f.Read)
				}
			}
			if err := late.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			follow()
			if f.Read != 1 || f.Whole || f.Views[1].Status != reward.PromotionCancelled {
				t.Fatalf("after the cancel has committed, %d promotions were read (whole list: %t), and promotion 1 is %s",
					f.Read, f.Whole, f.Views[1].Status)
			}
		})
	}
}

// TestOpenTransactionsHideNoChange: transactions stay open for a while, commit in
// another order than they began, or roll back. What has committed before a read
// begins is in what the reader knows after it.
func TestOpenTransactionsHideNoChange(t *testing.T) {
	t.Parallel()
	const promotions, writers, readers, changes = 12, 10, 3, 60
	s, ctx := registered(t, promotions), t.Context()
	var committed [promotions + 1]atomic.Int64 // versions; the writer of a version holds the row's lock
	var writing, reading sync.WaitGroup
	done := make(chan struct{})
	for w := range writers {
		writing.Go(func() {
			db, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
			for range changes {
				if err := changeSlowly(ctx, db, 1+rand.IntN(promotions), &committed); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	var whole atomic.Int64
	for range readers {
		reading.Go(func() {
			var f storetest.Follower
			for more := true; more; {
				select {
				case <-done:
					more = false
				default:
				}
				var before [promotions + 1]int64
				for i := range before {
					before[i] = committed[i].Load()
				}
				if err := f.Follow(ctx, s); err != nil {
					t.Error(err)
					return
				}
				if f.Whole {
					whole.Add(1)
				}
				for i := 1; i <= promotions; i++ {
					if got := version(f.Views[reward.PromotionID(i)]); got < before[i] {
						t.Errorf("promotion %d: version %d had committed, the reader knows version %d", i, before[i], got)
						return
					}
				}
			}
			if err := f.Compare(ctx, s); err != nil {
				t.Error(err)
			}
		})
	}
	writing.Wait()
	close(done)
	reading.Wait()
	if n := whole.Load(); n != readers {
		t.Errorf("%d reads were of the whole list, want the first of each of %d readers", n, readers)
	}
}

func version(v store.PromotionView) int64 {
	n, _ := strconv.ParseInt(v.Name, 10, 64) // 0 before the first change
	return n
}

// changeSlowly raises the version in the name of a promotion, in a transaction that
// stays open for a moment. Some transactions roll back.
func changeSlowly(ctx context.Context, db *pgx.Conn, id int, committed *[13]atomic.Int64) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if rand.IntN(2) == 0 { // get the transaction ID long before the change
		if _, err := tx.Exec(ctx, `SELECT pg_current_xact_id(), pg_sleep($1)`, rand.Float64()/100); err != nil {
			return err
		}
	}
	if rand.IntN(3) == 0 {
		if _, err := tx.Exec(ctx, `SAVEPOINT a`); err != nil {
			return err
		}
	}
	var name string
	err = tx.QueryRow(ctx, `UPDATE promotions SET name = (coalesce(nullif(name, ''), '0')::int8 + 1)::text WHERE id = $1 RETURNING name`, id).Scan(&name)
	if err != nil {
		return err
	}
	now, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, rand.Float64()/100); err != nil {
		return err
	}
	if rand.IntN(4) == 0 {
		return tx.Rollback(ctx)
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	for {
		was := committed[id].Load()
		if was >= now || committed[id].CompareAndSwap(was, now) {
			return nil
		}
	}
}

// TestAMarkOfAnotherServerReadsAll: transaction IDs mean the same only on one
// server.
func TestAMarkOfAnotherServerReadsAll(t *testing.T) {
	t.Parallel()
	s, ctx := registered(t, 3), t.Context()
	c, err := s.PromotionChanges(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	server, snapshot, _ := strings.Cut(c.Mark, "/")
	for what, mark := range map[string]string{
		"the server has started at another time": "1" + server + "/" + snapshot,
		"its transaction IDs have gone back":     server + "/9000000000000000:9000000000000000:",
	} {
		c, err := s.PromotionChanges(ctx, mark)
		if err != nil || !c.Whole || len(c.Active) != 3 || strings.HasPrefix(c.Mark, "1"+server) {
			t.Errorf("%s: whole list %t, %d promotions, mark %s, %v", what, c.Whole, len(c.Active), c.Mark, err)
		}
	}
	if c, err = s.PromotionChanges(ctx, c.Mark); err != nil || c.Whole || len(c.Active) != 0 {
		t.Errorf("its own mark: whole list %t, %d promotions, %v", c.Whole, len(c.Active), err)
	}
}

// TestRestoredNotesCostNothing: a dump of another server brings notes with IDs that
// this server has not given yet. They are no changes.
func TestRestoredNotesCostNothing(t *testing.T) {
	t.Parallel()
	s, ctx := registered(t, 3), t.Context()
	var f storetest.Follower
	if err := f.Follow(ctx, s); err != nil {
		t.Fatal(err)
	}
	run(t, s, `UPDATE changes SET changed = '9000000000000000'`)
	if err := f.Follow(ctx, s); err != nil || f.Read != 0 || f.Whole {
		t.Errorf("%d promotions read, whole list %t, %v", f.Read, f.Whole, err)
	}
	if _, err := s.PromotionClose(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if err := f.Follow(ctx, s); err != nil || f.Read != 1 || !f.Views[2].Closed {
		t.Errorf("after a change %d promotions were read, %v", f.Read, err)
	}
}

// TestNotesWaitForNobody: notes of two transactions for one promotion never wait
// for each other, because one notes its row and the other its counts. The rows
// themselves keep their HOT updates.
func TestNotesWaitForNobody(t *testing.T) {
	t.Parallel()
	s, ctx := registered(t, 1), t.Context()
	counts, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = counts.Rollback(ctx) }()
	for _, sql := range []string{
		`SET LOCAL idle_in_transaction_session_timeout = 0`, `UPDATE summaries SET ready = 1 WHERE promotion_id = 1 AND summary_id = 0`,
	} {
		if _, err := counts.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.pool.Exec(ctx, `UPDATE promotions SET status = 'CANCELLED' WHERE id = 1`); err != nil {
		t.Fatalf("the cancel waits for the note of another transaction: %v", err) // after lock_timeout
	}
}

// TestAnOldSnapshotHidesNoChange: a session keeps a snapshot open, as a backup does,
// and another one a transaction ID. Nothing that changes meanwhile can be cleaned up.
// Each read knows the changes that had committed before it.
func TestAnOldSnapshotHidesNoChange(t *testing.T) {
	t.Parallel()
	const promotions, rounds, each = 2, 20, 200
	s, ctx := registered(t, promotions), t.Context()
	for _, old := range []string{`SELECT count(*) FROM promotions`, `SELECT pg_current_xact_id()`} {
		tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if _, err := tx.Exec(ctx, old); err != nil {
			t.Fatal(err)
		}
	}
	var f storetest.Follower
	for round := range rounds {
		// Each change is a transaction of its own, with counts and a promotion.
		if _, err := s.pool.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN
  FOR i IN 1..%[1]d LOOP
    UPDATE summaries SET attempts = attempts + 1 WHERE summary_id = 0 AND promotion_id = 1 + i %% %[2]d;
    UPDATE promotions SET name = %[3]d::text WHERE id = 1 + i %% %[2]d;
    COMMIT;
  END LOOP;
END $$`, each, promotions, round+1)); err != nil {
			t.Fatal(err)
		}
		if err := f.Follow(ctx, s); err != nil {
			t.Fatal(err)
		}
		for id, v := range f.Views {
			if version(v) != int64(round+1) || v.Counts.Attempts != int64((round+1)*each/promotions) {
				t.Fatalf("round %d: promotion %d has version %s with %d attempts", round+1, id, v.Name, v.Counts.Attempts)
			}
		}
		if whole := f.Whole; len(f.Views) != promotions || whole != (round == 0) || f.Read != promotions {
			t.Fatalf("round %d: %d promotions, %d read, whole: %t", round+1, len(f.Views), f.Read, whole)
		}
	}
	if err := f.Compare(ctx, s); err != nil {
		t.Error(err)
	}
}
