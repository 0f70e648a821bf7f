package queuetest

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// Benchmark measures the entries per second of an implementation.
func Benchmark(b *testing.B, newQueue func(b testing.TB) queue.Queue) {
	s := queue.Stream{Type: reward.Point, PromotionID: 1}
	const batch = 1000
	fill := func(b *testing.B, q queue.Queue, n int) {
		for from := 0; from < n; from += batch {
			added, err := q.Add(b.Context(), queue.AddParams{
				Stream: s, MaxLen: 1 << 40, Deadline: time.Now().Add(time.Hour), Entries: newEntries(from, batch),
			})
			if err != nil || added != batch {
				b.Fatalf("added %d, %v", added, err)
			}
		}
	}
	rate := func(b *testing.B, perOp int) {
		b.ReportMetric(float64(b.N*perOp)/b.Elapsed().Seconds(), "entries/s")
	}
	b.Run("Add1000", func(b *testing.B) {
		q := newQueue(b)
		for b.Loop() {
			fill(b, q, batch)
		}
		rate(b, batch)
	})
	for _, count := range []int{10, 100, 1000} {
		name := map[int]string{10: "ReadAck10", 100: "ReadAck100", 1000: "ReadAck1000"}[count]
		b.Run(name, func(b *testing.B) {
			q := newQueue(b)
			left := 0
			for b.Loop() {
				if left < count {
					b.StopTimer()
					fill(b, q, 20*batch)
					left += 20 * batch
					b.StartTimer()
				}
				got, err := q.Read(b.Context(), s, []queue.ReadParams{{Consumer: "a", Count: count}})
				if err != nil || len(got) != count {
					b.Fatalf("read %d, %v", len(got), err)
				}
				if err := q.Ack(b.Context(), s, ids(got)); err != nil {
					b.Fatal(err)
				}
				left -= count
			}
			rate(b, count)
		})
	}
	b.Run("ReadNothing", func(b *testing.B) {
		q := newQueue(b)
		for b.Loop() {
			if _, err := q.Read(b.Context(), s, []queue.ReadParams{{Consumer: "a", Count: 10}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
