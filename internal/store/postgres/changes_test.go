package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/storetest"
)

// registered returns a store with RUNNING promotions from 1 to n.
func registered(t testing.TB, n int) database {
	t.Helper()
	s := lend(t)
	for from := 1; from <= n; from += store.BatchMax {
		var rs []store.Registration
		for id := from; id <= min(n, from+store.BatchMax-1); id++ {
			rs = append(rs, store.Registration{ID: reward.PromotionID(id), Type: reward.Point, Started: true})
		}
		fixture.Must(s.PromotionRegister(t.Context(), rs, reward.Limits{}, time.Now()))(t)
	}
	return s
}

// TestACancelThatCommitsLateIsFollowed: a cancel gets its transaction ID and
// waits. Other changes get higher ones and commit, and a reader sees them. The
// cancel commits, after one that began later and before one that began earlier. The
// reader must hear of each.
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
			s, ctx := registered(t, 4), t.Context()
			var f storetest.Follower
			follow := func() {
				t.Helper()
				fixture.OK(t, f.Follow(ctx, s))
			}
			follow()
			last := holding(t, s, `UPDATE promotions SET status = 'CANCELLED' WHERE id = 3`)
			late := holding(t, s, begin...)
			never := holding(t, s, `UPDATE promotions SET status = 'CANCELLED' WHERE id = 4`)
			for n := range int64(3) { // each gets a higher ID, and a reader sees it
				fixture.Must(s.PromotionChange(ctx, rules.PromotionChange{ID: 2, Name: new(strconv.FormatInt(1+n, 10))}))(t)
				follow()
				if f.Read != 1 || version(f.Views[2]) != 1+n || f.Views[1].Status != reward.Running {
					t.Fatalf("%d promotions read: %+v", f.Read, f.Views)
				}
				if follow(); f.Read != 0 { // an open transaction, even of another database, repeats no change
					t.Fatalf("%d promotions read again", f.Read)
				}
			}
			fixture.OK(t, late.Commit(ctx))
			follow()
			if f.Read != 1 || f.Whole || f.Views[1].Status != reward.PromotionCancelled {
				t.Fatalf("after the cancel has committed, %d promotions were read (whole list: %t), and promotion 1 is %s",
					f.Read, f.Whole, f.Views[1].Status)
			}
			// The one that began first commits last, and one rolls back.
			fixture.OK(t, last.Commit(ctx))
			release(t, never)
			follow()
			if f.Read != 1 || f.Whole || f.Views[3].Status != reward.PromotionCancelled || f.Views[4].Status != reward.Running {
				t.Fatalf("at last, %d promotions were read (whole list: %t): %+v", f.Read, f.Whole, f.Views)
			}
		})
	}
}

func version(v store.PromotionView) int64 {
	n, _ := strconv.ParseInt(v.Name, 10, 64) // 0 before the first change
	return n
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
	fixture.OK(t, f.Follow(ctx, s))
	run(t, s, `UPDATE changes SET changed = '9000000000000000'`)
	if err := f.Follow(ctx, s); err != nil || f.Read != 0 || f.Whole {
		t.Errorf("%d promotions read, whole list %t, %v", f.Read, f.Whole, err)
	}
	fixture.Must(s.PromotionClose(ctx, 2))(t)
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
	holding(t, s, `UPDATE summaries SET ready = 1 WHERE promotion_id = 1 AND summary_id = 0`)
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
		tx := fixture.Must(s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))(t)
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		fixture.Must(tx.Exec(ctx, old))(t)
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
		fixture.OK(t, f.Follow(ctx, s))
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
