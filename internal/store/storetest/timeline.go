package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

func exerciseTimelines(t *testing.T, open Open) {
	begin := time.Unix(1_800_000_000, 0).UTC() // a multiple of an hour
	point := func(id reward.PromotionID, second int, n int64) store.PromotionPoint {
		p := store.PromotionPoint{PromotionID: id, At: begin.Add(time.Duration(second) * time.Second), Step: store.TimelineStep, Waiting: 10 * n, Samples: 1}
		p.PromotionSums = obs.PromotionSums{Succeeded: n, Failed: 2 * n, Retrying: 3 * n, Unknown: 4 * n, CallMillis: 5 * n, Amount: reward.Amount(6 * n)}
		for i := range p.Calls {
			p.Calls[i] = n * int64(i)
		}
		return p
	}
	read := func(b *bundle, id reward.PromotionID, step time.Duration) []store.PromotionPoint {
		b.Helper()
		return must(b.PromotionTimeline(b.ctx, id, store.TimelineSpan{From: begin, To: begin.Add(100 * time.Hour), Step: step}))(b)
	}
	run(t, open, "InstancesAddUp", func(b *bundle) {
		b.must(b.TimelineWrite(b.ctx, "a", []store.PromotionPoint{point(1, 0, 1), point(1, 20, 2), point(2, 0, 9)}, nil))
		for range 2 { // a repetition changes nothing
			b.must(b.TimelineWrite(b.ctx, "b", []store.PromotionPoint{point(1, 0, 3)}, nil))
		}
		first, later := point(1, 0, 4), point(1, 20, 2)
		first.Samples = 2
		same(b, "points", []store.PromotionPoint{first, later}, read(b, 1, 10*time.Second))
		whole := point(1, 0, 6)
		whole.Samples = 3
		same(b, "in one step", []store.PromotionPoint{whole}, read(b, 1, time.Minute))
		list, err := b.PromotionTimeline(b.ctx, 1, store.TimelineSpan{From: begin.Add(10 * time.Second), To: begin.Add(20 * time.Second), Step: 10 * time.Second})
		b.must(err)
		same(b, "between", 0, len(list))
		same(b, "of another promotion", 1, len(read(b, 2, 10*time.Second)))
		b.must(b.TimelineWrite(b.ctx, "a", nil, nil))
	})
	run(t, open, "OfTemplates", func(b *bundle) {
		p := store.TemplatePoint{TemplateID: 7, At: begin, Step: store.TimelineStep, TemplateSums: obs.TemplateSums{Asked: 5, Issued: 3, Refused: 100}, Waiting: 8, Samples: 1}
		for i := range p.Reasons {
			p.Reasons[i] = int64(i + 1)
		}
		b.must(b.TimelineWrite(b.ctx, "a", nil, []store.TemplatePoint{p}))
		b.must(b.TimelineWrite(b.ctx, "b", nil, []store.TemplatePoint{p}))
		n := must(b.TimelineFold(b.ctx, store.TimelineFoldParams{From: store.TimelineStep, To: time.Minute, Before: begin.Add(time.Hour), Limit: 9}))(b)
		same(b, "folded", 2, n)
		p.Add(&p.TemplateSums)
		p.Step, p.Waiting, p.Samples = time.Minute, 16, 2
		list := must(b.TemplateTimeline(b.ctx, 7, store.TimelineSpan{From: begin, To: begin.Add(time.Hour), Step: time.Minute}))(b)
		same(b, "points", []store.TemplatePoint{p}, list)
	})
	// Random points of three instances, folded in random order and portions, keep the
	// sums of each hour.
	run(t, open, "FoldingKeepsSums", func(b *bundle) {
		random := rand.New(rand.NewPCG(1, 2))
		var points [3][]store.PromotionPoint
		type hour struct {
			id    reward.PromotionID
			begin int64
		}
		want := make(map[hour]store.PromotionPoint)
		steps := []time.Duration{time.Minute, 10 * time.Minute, time.Hour}
		for range 400 {
			id, instance := reward.PromotionID(random.IntN(3)), random.IntN(3)
			p := point(id, 10*random.IntN(2*360), random.Int64N(1000))
			if slices.ContainsFunc(points[instance], func(q store.PromotionPoint) bool { return q.PromotionID == p.PromotionID && q.At.Equal(p.At) }) {
				continue
			}
			points[instance] = append(points[instance], p)
			key := hour{id, p.At.Truncate(time.Hour).Unix()}
			sum := want[key]
			sum.PromotionSums.Add(&p.PromotionSums)
			sum.Waiting, sum.Samples = sum.Waiting+p.Waiting, sum.Samples+p.Samples
			sum.PromotionID, sum.At = id, p.At.Truncate(time.Hour)
			want[key] = sum
		}
		for i, list := range points {
			b.must(b.TimelineWrite(b.ctx, fmt.Sprint("instance ", i), list, nil))
		}
		check := func() {
			b.Helper()
			hours := 0
			for id := range reward.PromotionID(3) {
				for _, got := range read(b, id, time.Hour) {
					hours++
					got.Step = 0
					same(b, "sums", want[hour{id, got.At.Unix()}], got)
				}
			}
			same(b, "hours", len(want), hours)
		}
		fold := func(from, to time.Duration, before time.Time, limit int) int {
			b.Helper()
			return must(b.TimelineFold(b.ctx, store.TimelineFoldParams{From: from, To: to, Before: before, Limit: limit}))(b)
		}
		// Some points are folded in two stages, some in one, in portions that cut
		// through steps.
		for range 60 {
			from, to := store.TimelineStep, steps[random.IntN(3)]
			if random.IntN(3) == 0 {
				from, to = time.Minute, steps[1+random.IntN(2)]
			}
			fold(from, to, begin.Add(time.Duration(random.IntN(7200))*time.Second), 1+random.IntN(9))
			check()
		}
		for _, f := range [][2]time.Duration{{store.TimelineStep, time.Minute}, {time.Minute, 10 * time.Minute}, {10 * time.Minute, time.Hour}} {
			for fold(f[0], f[1], begin.Add(9*time.Hour), 50) > 0 {
				check()
			}
		}
		for id := range reward.PromotionID(3) {
			for _, got := range read(b, id, time.Hour) {
				same(b, "step", time.Hour, got.Step)
			}
		}
		same(b, "left to fold", 0, fold(10*time.Minute, time.Hour, begin.Add(9*time.Hour), 50))
	})
	run(t, open, "FoldingAtTheSameTime", func(b *bundle) {
		var list []store.PromotionPoint
		var want int64
		for i := range 360 {
			list = append(list, point(1, 10*i, int64(i)))
			want += int64(i)
		}
		b.must(b.TimelineWrite(b.ctx, "a", list, nil))
		done := make(chan error)
		const folders = 4
		for range folders {
			go func() {
				for {
					n, err := b.TimelineFold(b.ctx, store.TimelineFoldParams{From: store.TimelineStep, To: time.Minute, Before: begin.Add(time.Hour), Limit: 20})
					if err != nil || n == 0 {
						done <- err
						return
					}
				}
			}()
		}
		for range folders {
			b.must(<-done)
		}
		var got int64
		for _, p := range read(b, 1, time.Minute) {
			got += p.Succeeded
		}
		same(b, "succeeded", want, got)
	})
	run(t, open, "WhatIsNotOverStays", func(b *bundle) {
		b.must(b.TimelineWrite(b.ctx, "a", []store.PromotionPoint{point(1, 0, 1), point(1, 50, 1), point(1, 60, 1)}, nil))
		for _, step := range []struct{ before, want int }{{59, 0}, {119, 2}} {
			n := must(b.TimelineFold(b.ctx, store.TimelineFoldParams{
				From: store.TimelineStep, To: time.Minute, Before: begin.Add(time.Duration(step.before) * time.Second), Limit: 9,
			}))(b)
			same(b, fmt.Sprintf("folded before second %d", step.before), step.want, n)
		}
	})
}
