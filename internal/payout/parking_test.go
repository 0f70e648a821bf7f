package payout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// fault is what is wrong with a promotion's rows.
type fault string

const (
	none      fault = "none"
	badCounts fault = "counts" // a constraint refuses each of its outcomes
	badRow    fault = "row"    // a constraint refuses the outcome of its target 1
	locked    fault = "locked"
)

// faultyRows writes outcomes in memory. A batch with an outcome of a faulty
// promotion fails as a whole.
type faultyRows struct {
	clockedRows
	t *testing.T

	mu       sync.Mutex // protects what follows
	paused   map[reward.PromotionID]string
	faults   map[reward.PromotionID]fault
	away     bool // the whole database
	recorded map[store.PayoutID]int
	returned map[store.PayoutID]int
	finishes int
}

var errAwayRows = errors.New("connect to 10.0.0.7: connection refused")

func (r *faultyRows) refuse(id reward.PromotionID, t reward.TargetID) error {
	switch f := r.faults[id]; {
	case r.away:
		return errAwayRows
	case f == badCounts, f == badRow && t == 1:
		return fmt.Errorf("finish payouts: %w", &store.ConstraintError{Constraint: "summaries_queued_check", Err: errFault})
	case f == locked:
		return fmt.Errorf("%w: finish payouts", store.ErrLocked)
	}
	return nil
}

func (r *faultyRows) PayoutFinish(_ context.Context, p store.PayoutFinishParams) ([]store.FinishResult, error) {
	time.Sleep(5 * time.Millisecond) // fake time
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finishes++
	for _, o := range p.Outcomes {
		if err := r.refuse(o.PromotionID, o.TargetID); err != nil {
			return nil, err
		}
	}
	for _, o := range p.Outcomes {
		r.recorded[store.PayoutID{PromotionID: o.PromotionID, TargetID: o.TargetID}]++
	}
	return make([]store.FinishResult, len(p.Outcomes)), nil
}

func (r *faultyRows) PayoutReturn(_ context.Context, p store.PayoutReturnParams) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range p.Refs {
		if err := r.refuse(ref.PromotionID, ref.TargetID); err != nil {
			return 0, err
		}
	}
	for _, ref := range p.Refs {
		r.returned[store.PayoutID{PromotionID: ref.PromotionID, TargetID: ref.TargetID}]++
	}
	return len(p.Refs), nil
}

func (r *faultyRows) PromotionViews(_ context.Context, ids []reward.PromotionID) ([]store.PromotionView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := store.PromotionView{Promotion: reward.Promotion{ID: ids[0], Status: reward.Running}}
	if r.paused[ids[0]] != "" {
		v.Status = reward.Paused
	}
	return []store.PromotionView{v}, nil
}

func (r *faultyRows) PromotionMove(_ context.Context, p store.PromotionMoveParams) (reward.Promotion, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused[p.ID] != "" {
		r.t.Errorf("promotion %d is paused again by a write that failed before somebody could resume it", p.ID)
	}
	r.paused[p.ID] = p.Reason
	return reward.Promotion{}, nil
}

func (r *faultyRows) set(away bool, faults map[reward.PromotionID]fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away, r.faults = away, faults
}

func (r *faultyRows) of(id reward.PromotionID) (recorded int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := range r.recorded {
		if x.PromotionID == id {
			recorded++
		}
	}
	return recorded
}

// ackOrder is a queue that checks that an entry is acknowledged only after its
// outcome was recorded.
type ackOrder struct {
	queue.Queue
	t    *testing.T
	rows *faultyRows
	of   func(s queue.Stream, entry string) store.PayoutID
}

// recorder is a finisher over a memory queue and faulty rows. Each entry that its
// pools deliver is an outcome at once.
type recorder struct {
	*Finisher
	t        *testing.T
	rows     *faultyRows
	queue    *queue.Memory
	pools    *pool.Manager
	troubles *obs.Troubles

	mu      sync.Mutex // protects what follows
	entries map[string]store.PayoutID
	most    map[reward.PromotionID]int // delivered and not recorded
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{
		t: t, queue: queue.NewMemory(), troubles: obs.NewTroubles(nil, obs.Log{}),
		rows:    &faultyRows{t: t, paused: make(map[reward.PromotionID]string), recorded: make(map[store.PayoutID]int), returned: make(map[store.PayoutID]int)},
		entries: make(map[string]store.PayoutID), most: make(map[reward.PromotionID]int),
	}
	r.Finisher = newFinisher(newShared(Config{
		Store: r.rows, Queue: &ackOrder{Queue: r.queue, t: t, rows: r.rows, of: r.payout}, Limits: Limits{Lease: time.Second}, Troubles: r.troubles,
	}, nil), nil, func() {})
	r.pools = pool.NewManager(pool.Config{
		Queue: r.queue, Handle: r.Handle, Instance: "test", MinConsumers: 2, MaxConsumers: 2, InFlight: 8, BatchSize: 8,
		PollInterval: 100 * time.Millisecond, IdleTimeout: time.Hour, Lease: 15 * time.Second, StopTimeout: time.Second,
		AcceptsWork: func(id reward.PromotionID) bool { return !r.parking.has(id) }, Healthy: func() bool { return true },
		Refused: func(queue.Stream, error) {}, Changed: func() {},
	})
	r.Start(context.Background(), r.run)
	return r
}

// pendingMax is how many entries a pool of the recorder may have.
const pendingMax = 2 * 2 * 8

func (r *recorder) payout(s queue.Stream, entry string) store.PayoutID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entries[s.Name()+entry]
}

func (q *ackOrder) Ack(ctx context.Context, s queue.Stream, ids []string) error {
	for _, id := range ids {
		p := q.of(s, id)
		q.rows.mu.Lock()
		if q.rows.recorded[p]+q.rows.returned[p] == 0 {
			q.t.Errorf("%v was acknowledged before its outcome was recorded", p)
		}
		q.rows.mu.Unlock()
	}
	return q.Queue.Ack(ctx, s, ids)
}

func (r *recorder) Handle(_ context.Context, items []*pool.Item) {
	for _, it := range items {
		id := store.PayoutID{PromotionID: it.Stream.PromotionID, TargetID: it.TargetID}
		r.mu.Lock()
		r.entries[it.Stream.Name()+it.ID] = id
		r.mu.Unlock()
		go func() {
			if it.Claimed {
				r.returnToReady(it)
				return
			}
			r.finish(it, 0, rules.Outcome{Ref: reward.Ref{PromotionID: id.PromotionID, TargetID: id.TargetID}, Kind: rules.OutcomePaid})
		}()
	}
	for _, p := range r.pools.Pools() {
		r.mu.Lock()
		r.most[p.Stream.PromotionID] = max(r.most[p.Stream.PromotionID], p.Pending)
		r.mu.Unlock()
	}
}

// feed adds entries of n promotions, the same number each.
func (r *recorder) feed(promotions, entries int) {
	r.t.Helper()
	var specs []pool.Spec
	for i := range promotions {
		s := queue.Stream{Type: reward.Point, PromotionID: reward.PromotionID(i + 1)}
		list := make([]queue.NewEntry, entries)
		for j := range list {
			list[j] = queue.NewEntry{TargetID: reward.TargetID(j + 1), Dispatch: 1, Message: []byte("{}")}
		}
		fixture.Must(r.queue.Add(r.t.Context(), queue.AddParams{Stream: s, MaxLen: entries, Deadline: time.Now().Add(time.Hour), Entries: list}))(r.t)
		specs = append(specs, pool.Spec{Stream: s, Total: int64(entries), Work: true})
	}
	r.pools.Converge(specs)
}

func (r *recorder) stop() {
	late := time.AfterFunc(3*time.Second, r.giveUp)
	r.pools.StopAll()
	late.Stop()
	r.Stop()
}

// delivered returns how many entries of a promotion were delivered.
func (r *recorder) delivered(id reward.PromotionID) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.entries {
		if x.PromotionID == id {
			n++
		}
	}
	return n
}

func (r *recorder) reasons() map[reward.PromotionID]string {
	r.rows.mu.Lock()
	defer r.rows.mu.Unlock()
	return maps.Clone(r.rows.paused)
}

// TestOutcomesOfOtherPromotionsAreRecorded draws promotions with faults, and an
// outage of the whole database. While the faults last, every outcome that no
// fault concerns is recorded; afterwards all are.
func TestOutcomesOfOtherPromotionsAreRecorded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		promotions := rapid.IntRange(1, 12).Draw(rt, "promotions")
		entries := rapid.IntRange(1, 80).Draw(rt, "entries")
		faults := make(map[reward.PromotionID]fault)
		for i := range promotions {
			faults[reward.PromotionID(i+1)] = rapid.SampledFrom([]fault{none, none, badCounts, badRow, locked}).Draw(rt, "fault")
		}
		outage := time.Duration(rapid.SampledFrom([]int{0, 0, 1, 30}).Draw(rt, "outage")) * time.Second
		t.Run("", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sharedBatches(t, promotions, entries, faults, outage) })
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

func sharedBatches(t *testing.T, promotions, entries int, faults map[reward.PromotionID]fault, outage time.Duration) {
	r := newRecorder(t)
	defer r.queue.Close()
	defer r.stop()
	r.rows.set(outage > 0, nil)
	r.feed(promotions, entries)
	time.Sleep(outage)
	if len(r.reasons()) > 0 {
		t.Errorf("an outage of the database has paused %v", r.reasons())
	}
	if outage >= 30*time.Second && !strings.Contains(trouble(r.troubles, obs.PartOutcomes), "database") || strings.Contains(trouble(r.troubles, obs.PartOutcomes), "10.0.0.7") {
		t.Errorf("trouble %q", trouble(r.troubles, obs.PartOutcomes))
	}
	r.rows.set(false, faults)
	time.Sleep(time.Minute)
	stuck := 0
	for id, f := range faults {
		n, delivered := r.rows.of(id), r.delivered(id)
		switch {
		case f == none && n != entries, f == badRow && n != delivered-1, f != none && f != badRow && n != 0:
			t.Errorf("promotion %d (%s): of %d outcomes %d were delivered, and %d are recorded", id, f, entries, delivered, n)
		}
		reason, paused := r.reasons()[id]
		if paused != (f == badCounts || f == badRow) || paused && !strings.Contains(reason, "summaries_queued_check") {
			t.Errorf("promotion %d (%s) is paused: %v, %q", id, f, paused, reason)
		}
		if f != none {
			stuck++
		}
		r.mu.Lock()
		if r.most[id] > pendingMax {
			t.Errorf("promotion %d (%s) had %d pending entries", id, f, r.most[id])
		}
		r.mu.Unlock()
	}
	if (trouble(r.troubles, obs.PartOutcomes) != "") != (stuck > 0) {
		t.Errorf("%d promotions are stuck, and the trouble is %q", stuck, trouble(r.troubles, obs.PartOutcomes))
	}
	r.rows.set(false, nil)
	time.Sleep(10 * time.Second)
	for id := range faults {
		if n := r.rows.of(id); n != entries {
			t.Errorf("promotion %d: %d of %d outcomes are recorded after the repair", id, n, entries)
		}
	}
	if trouble(r.troubles, obs.PartOutcomes) != "" || !r.parking.vacant() {
		t.Errorf("trouble %q, vacant %v after the repair", trouble(r.troubles, obs.PartOutcomes), r.parking.vacant())
	}
	for id, n := range r.rows.recorded {
		if n != 1 {
			t.Errorf("%v was recorded %d times", id, n)
		}
	}
}

// TestStopLeavesParkedOutcomesPending checks that a stop ends although outcomes
// are parked, and acknowledges none of them.
func TestStopLeavesParkedOutcomesPending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		r.rows.set(false, map[reward.PromotionID]fault{1: badCounts})
		r.feed(2, 10)
		time.Sleep(5 * time.Second)
		r.stop()
		defer r.queue.Close()
		if r.rows.of(1) != 0 || r.rows.of(2) != 10 {
			t.Errorf("recorded %d and %d", r.rows.of(1), r.rows.of(2))
		}
		info, err := r.queue.Info(t.Context(), queue.Stream{Type: reward.Point, PromotionID: 1})
		if err != nil || info.Len != 10 {
			t.Errorf("%d entries are left, %v", info.Len, err)
		}
	})
}
