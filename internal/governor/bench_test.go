package governor

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

var quick = Outcome{Class: reward.AnswerPaid, Status: 200, Took: time.Millisecond}

func BenchmarkAcquireDone(b *testing.B) {
	g := newTest(b, Config{})
	for b.Loop() {
		acquire(b, g, Job{PromotionID: 1}).Done(quick)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "grants/s")
}

// From several goroutines, none of which has to wait.
func BenchmarkAcquireDoneParallel(b *testing.B) {
	g := newTest(b, Config{})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			acquire(b, g, Job{PromotionID: 1}).Done(quick)
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "grants/s")
}

// Each grant is handed from one goroutine to another: a hundred of them, of ten
// promotions, share four places.
func BenchmarkGrantsToWaiters(b *testing.B) {
	g := newTest(b, Config{MaxConcurrency: 4})
	var ids atomic.Int64
	b.SetParallelism(50)
	b.RunParallel(func(pb *testing.PB) {
		job := Job{PromotionID: reward.PromotionID(1 + ids.Add(1)%10), Weight: 2}
		for pb.Next() {
			p := acquire(b, g, job)
			runtime.Gosched() // so that others come and have to wait
			p.Done(quick)
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "grants/s")
}

func BenchmarkKickNobody(b *testing.B) {
	g := newTest(b, Config{})
	for b.Loop() {
		g.CancelWaiting(1)
	}
}
