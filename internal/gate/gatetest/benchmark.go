package gatetest

import (
	"fmt"
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// Benchmark measures a driver with one call in flight. The metric users/s is the
// number of users per second.
func Benchmark(b *testing.B, newGate func(b testing.TB) gate.Gate) {
	const id = reward.TemplateID(42)
	load := func(b *testing.B, total int64, holdings ...gate.Holding) *bundle {
		each := &bundle{TB: b, g: newGate(b), ctx: b.Context(), id: id}
		s := state()
		s.Total = total
		each.load(s, holdings...)
		return each
	}
	// admit uses each user once, or the same users over and over if of is set.
	admit := func(b *testing.B, each *bundle, batch, of int, want gate.Verdict) {
		users, next := make([]string, batch), 0
		for b.Loop() {
			for i := range users {
				if next++; of > 0 && next > of {
					next = 1
				}
				users[i] = fmt.Sprint("user-", next)
			}
			result, err := each.g.Admit(each.ctx, id, users, true)
			if err != nil || result.Answers[0].Verdict != want {
				b.Fatalf("%+v, %v", result, err)
			}
		}
		b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "users/s")
	}
	for _, batch := range []int{1, gate.AdmitMax} {
		b.Run(fmt.Sprint("Admitted", batch), func(b *testing.B) {
			admit(b, load(b, 1<<40), batch, 0, gate.Admitted)
		})
		b.Run(fmt.Sprint("SoldOut", batch), func(b *testing.B) {
			admit(b, load(b, 0), batch, 0, gate.SoldOut)
		})
		b.Run(fmt.Sprint("Waits", batch), func(b *testing.B) {
			each := load(b, 1<<40)
			const waiting = 100 * gate.AdmitMax
			for from := 0; from < waiting; from += gate.AdmitMax {
				users := make([]string, gate.AdmitMax)
				for i := range users {
					users[i] = fmt.Sprint("user-", from+i+1)
				}
				each.answers(users...)
			}
			admit(b, each, batch, waiting, gate.InLine)
		})
	}
	b.Run("AdmittedAndSettled64", func(b *testing.B) {
		each := load(b, 1<<40)
		users, next := make([]string, gate.AdmitMax), int64(0)
		s := state()
		s.Total = 1 << 40
		for b.Loop() {
			holdings := make([]gate.Holding, len(users))
			for i := range users {
				next++
				users[i] = fmt.Sprint("user-", next)
				holdings[i] = gate.Holding{UserID: users[i], Held: 1, CouponID: reward.CouponID(next)}
			}
			each.answers(users...)
			got, err := each.g.Read(each.ctx, id, "c", len(users))
			if err != nil || len(got.Requests) != len(users) {
				b.Fatalf("read %d, %v", len(got.Requests), err)
			}
			s.Version, s.Settled, s.Live = s.Version+1, next, next
			each.apply(s.Version-1, s, holdings...)
			if _, err := each.g.Ack(each.ctx, id, 1, tickets(got.Requests)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N*len(users))/b.Elapsed().Seconds(), "users/s")
	})
}
