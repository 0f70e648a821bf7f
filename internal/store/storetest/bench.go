package storetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// Benchmark measures the main writes on b.N rows of one promotion, from four
// goroutines at once. It inserts READY rows (batches of 1,000), dispatches them
// (batches of 1,000), and finishes them (batches of 500) after reading them as
// a consumer does. It reports rows per second for each.
func Benchmark(b *testing.B, open Open) {
	const workers, batch, finished = 4, 1000, 500
	s := &bundle{reporter: b, Store: open(b), ctx: b.Context()}
	s.running(1)
	stage := func(name string, size int, work func(from, to int) error) {
		var next atomic.Int64
		began := time.Now()
		s.must(together(workers, func(int) error {
			for {
				from := int(next.Add(int64(size))) - size
				if from >= b.N {
					return nil
				}
				if err := work(from, min(from+size, b.N)); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}))
		b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), name+"-rows/s")
	}
	b.ResetTimer()
	stage("insert", batch, func(from, to int) error {
		rows := make([]store.NewPayout, 0, to-from)
		for target := from; target < to; target++ {
			rows = append(rows, row(1, reward.TargetID(target)))
		}
		_, err := s.PayoutSave(s.ctx, store.PayoutSaveParams{Rows: rows, Now: epoch})
		return err
	})
	stage("dispatch", batch, func(from, to int) error {
		list, err := s.PayoutDispatch(s.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: to - from, MaxLen: b.N, Now: at(1)})
		if err == nil && len(list) != to-from {
			err = fmt.Errorf("%d rows dispatched, want %d", len(list), to-from)
		}
		return err
	})
	stage("finish", finished, func(from, to int) error {
		ids := make([]store.PayoutID, 0, to-from)
		for target := from; target < to; target++ {
			ids = append(ids, store.PayoutID{PromotionID: 1, TargetID: reward.TargetID(target)})
		}
		heads, err := s.PayoutGetMany(s.ctx, ids)
		if err != nil {
			return err
		}
		outcomes := make([]rules.Outcome, len(heads))
		for i, h := range heads {
			outcomes[i] = rules.Outcome{
				Ref: ref(1, h.TargetID, h.Dispatch), Kind: rules.OutcomePaid, TransactionKey: "tx-" + h.TargetID.String(),
			}
		}
		_, err = s.PayoutFinish(s.ctx, store.PayoutFinishParams{Outcomes: outcomes, Lease: lease, Now: at(2)})
		return err
	})
	b.StopTimer()
	v, err := s.PromotionGet(s.ctx, 1)
	s.must(err)
	same(s, "succeeded", int64(b.N), v.Counts.Payouts[reward.Succeeded])
}

// BenchmarkDispatch measures dispatches of b.N rows, in batches of 1,000, without
// approval.above, within it, and of approved rows while as many wait for an approval.
func BenchmarkDispatch(b *testing.B, open Open) {
	for _, way := range []struct {
		name     string
		above    reward.Amount
		approved bool
	}{{"without", 0, false}, {"within", math.MaxInt64, false}, {"approved", 1, true}} {
		b.Run(way.name, func(b *testing.B) {
			s := &bundle{reporter: b, Store: open(b), ctx: b.Context()}
			s.running(1)
			for round := range 2 {
				for from := 0; from < b.N; from += store.BatchMax {
					var rows []store.NewPayout
					for target := from; target < min(from+store.BatchMax, b.N); target++ {
						rows = append(rows, row(1, reward.TargetID(2*target+1-round)))
					}
					_, err := s.PayoutSave(s.ctx, store.PayoutSaveParams{Rows: rows, Now: at(round)})
					s.must(err)
				}
				if round == 0 && way.approved {
					s.approve(1, "lee")
				}
			}
			b.ResetTimer()
			for from := 0; from < b.N; from += store.BatchMax {
				list, err := s.PayoutDispatch(s.ctx, store.PayoutDispatchParams{
					PromotionID: 1, Limit: min(store.BatchMax, b.N-from), MaxLen: b.N, ApprovalAbove: way.above, Now: at(2),
				})
				s.must(err)
				same(s, "dispatched", min(store.BatchMax, b.N-from), len(list))
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkActive measures PromotionActive, and PromotionChanges, which every
// instance calls twice per second. The promotions have counts of finished work.
func BenchmarkActive(b *testing.B, open Open) {
	for _, count := range []int{1000, 10_000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			s := &bundle{reporter: b, Store: open(b), ctx: b.Context()}
			for from := 1; from <= count; from += store.BatchMax {
				var rs []store.Registration
				save := store.PayoutSaveParams{MaxLen: 1, Now: epoch}
				finish := store.PayoutFinishParams{Lease: lease, Now: at(10)}
				for id := reward.PromotionID(from); id < reward.PromotionID(from+store.BatchMax); id++ {
					rs = append(rs, store.Registration{ID: id, Type: reward.Point, Started: true})
					save.Rows = append(save.Rows, row(id, 1))
					finish.Outcomes = append(finish.Outcomes, rules.Outcome{Ref: ref(id, 1, 1), Kind: rules.OutcomePaid})
				}
				_, err := s.PromotionRegister(s.ctx, rs, epoch)
				s.must(err)
				_, err = s.PayoutSave(s.ctx, save)
				s.must(err)
				_, err = s.PayoutFinish(s.ctx, finish)
				s.must(err)
			}
			b.Run("WholeList", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					list, err := s.PromotionActive(s.ctx)
					if err != nil || len(list) != count {
						b.Fatalf("%d active promotions, %v", len(list), err)
					}
				}
			})
			var f Follower
			s.must(f.Follow(s.ctx, s))
			follow := func(b *testing.B, want int) {
				if err := f.Follow(s.ctx, s); err != nil || f.Read != want || f.Whole {
					b.Fatalf("%d promotions read, %v, want %d", f.Read, err, want)
				}
			}
			b.Run("NoChange", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					follow(b, 0)
				}
			})
			b.Run("OneChange", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					_, err := s.PromotionClose(s.ctx, 7)
					s.must(err)
					b.StartTimer()
					follow(b, 1)
				}
			})
		})
	}
}

// BenchmarkRequests measures the writes that API requests and leases wait for.
// An idempotency key is claimed and finished. A lease is renewed while the
// owners of similar leases are listed.
func BenchmarkRequests(b *testing.B, open Open) {
	s := &bundle{reporter: b, Store: open(b), ctx: b.Context()}
	b.Run("Idempotency", func(b *testing.B) {
		b.ReportAllocs()
		fingerprint, now := make([]byte, 32), epoch
		for b.Loop() {
			now = now.Add(time.Millisecond)
			key := make([]byte, 32)
			binary.BigEndian.PutUint64(key, uint64(now.UnixNano()))
			p := store.IdempotencyBeginParams{Key: key, Fingerprint: fingerprint, ID: 1, Lease: time.Second, Kept: time.Minute, Now: now}
			r, err := s.IdempotencyBegin(s.ctx, p)
			s.must(err)
			_, err = s.IdempotencyFinish(s.ctx, key, r.BegunAt, fingerprint)
			s.must(err)
		}
	})
	b.Run("Lease", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := s.LeaseTake(s.ctx, store.LeaseTakeParams{Name: "x-1", Owner: "x", TTL: time.Hour, Among: "x-"})
			s.must(err)
		}
	})
}

// BenchmarkWebhooks measures batches of 500 outcomes while no endpoint asks for the
// events of payouts, and while one does. Batches alternate, so that both are measured in
// the same minute. It reports the medians, and their ratio. Each iteration is four
// batches: refused and unknown outcomes, with the endpoint and without.
func BenchmarkWebhooks(b *testing.B, open Open) {
	const size = 500
	s := &bundle{reporter: b, Store: open(b), ctx: b.Context()}
	s.running(1)
	s.endpoint(1, "payout.failed", "payout.unknown")
	took := map[string][]float64{} // rows per second
	next := reward.TargetID(1)
	for n := 0; b.Loop(); n++ {
		for _, kind := range []rules.OutcomeKind{rules.OutcomeRefused, rules.OutcomeNoLookup} {
			for i := range 2 {
				asked := (n+i)%2 == 0 // the first alternates, too
				_, err := s.WebhookEndpointChange(s.ctx, 1, store.WebhookEndpointChange{Enabled: &asked})
				s.must(err)
				rows := make([]store.NewPayout, size)
				outcomes := make([]rules.Outcome, size)
				for i := range rows {
					rows[i] = row(1, next)
					outcomes[i] = rules.Outcome{Ref: ref(1, next, 1), Kind: kind, Code: "LIMIT", Message: "the limit is reached"}
					next++
				}
				_, err = s.PayoutSave(s.ctx, store.PayoutSaveParams{Rows: rows, MaxLen: math.MaxInt32, Now: at(int(next))})
				s.must(err)
				began := time.Now()
				finished, err := s.PayoutFinish(s.ctx, store.PayoutFinishParams{Outcomes: outcomes, Lease: lease, Now: at(int(next))})
				name := fmt.Sprintf("%v-asked=%v", kind, asked)
				took[name] = append(took[name], size/time.Since(began).Seconds())
				s.must(err)
				same(s, "outcomes", size, len(finished))
			}
		}
	}
	for _, kind := range []rules.OutcomeKind{rules.OutcomeRefused, rules.OutcomeNoLookup} {
		with, without := median(took[fmt.Sprintf("%v-asked=true", kind)]), median(took[fmt.Sprintf("%v-asked=false", kind)])
		name := map[rules.OutcomeKind]string{rules.OutcomeRefused: "payout.failed", rules.OutcomeNoLookup: "payout.unknown"}[kind]
		b.Logf("%-14s without an endpoint %6.0f outcomes/s, with one %6.0f: %.3f", name, without, with, with/without)
		b.ReportMetric(with/without, name+"-ratio")
	}
	e, err := s.WebhookEndpointGet(s.ctx, 1, math.MaxInt32)
	s.must(err)
	same(s, "recorded events", 2*size*b.N, e.Pending)
}

// median returns the middle of some values.
func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
