package lab

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
)

// IdleBench measures what instances cost while promotions have nothing to do.
type IdleBench struct {
	Instances  int
	Promotions []int // numbers of promotions to measure with
	Window     time.Duration
}

// The limits of the printed measurements, for each instance.
const (
	idleCoreMost     = 0.05
	idleCommandsMost = 100
	idleViewMost     = time.Second
)

// Run measures.
func (i IdleBench) Run(ctx context.Context, b Bench) (f Figures, err error) {
	err = b.run(ctx, true, func(s *stage) error {
		all, stop, err := s.start(ctx, "idle", i.Instances, &provider{}, func(cfg *config.Config) {
			cfg.Redis.Stream.InFlightPerConsumer = 16
			cfg.Reconcile.Interval = 24 * time.Hour // new promotions are checked once, which is not idle
		})
		if err != nil {
			return err
		}
		defer stop()
		made := 0
		for _, n := range slices.Sorted(slices.Values(i.Promotions)) {
			if err := startPromotions(ctx, all[0].Store(), made+1, n); err != nil {
				return err
			}
			made = n
			if err := i.measure(ctx, s, all, n, &f); err != nil {
				return err
			}
		}
		return nil
	})
	return f, err
}

// measure measures with n promotions, once every instance knows them.
func (i IdleBench) measure(ctx context.Context, s *stage, all []*engine.Engine, n int, f *Figures) error {
	for _, e := range all {
		for e.ActivePromotions() < n {
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
	}
	if err := pause(ctx, 5*time.Second); err != nil { // what the new promotions caused is over
		return err
	}
	before, err := readCosts(ctx, s.database, s.Redis)
	if err != nil {
		return err
	}
	oldest := time.Duration(0)
	began := time.Now()
	for time.Since(began) < i.Window {
		for _, e := range all {
			oldest = max(oldest, e.ViewAge())
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	each := time.Since(began).Seconds() * float64(len(all))
	after, err := readCosts(ctx, s.database, s.Redis)
	if err != nil {
		return err
	}
	share, commands := (after.cpu-before.cpu).Seconds()/each, float64(after.commands-before.commands)/each
	statements := float64(after.transactions-before.transactions) / each
	name := fmt.Sprintf("%s promotions, %s: ", number(int64(n)), countOf(int64(len(all)), "instance"))
	f.add(name+"transactions per second", statements, strconv.FormatFloat(statements, 'f', 1, 64))
	f.judge(name+"Redis commands per second", commands, fmt.Sprintf("%.1f (at most %d)", commands, idleCommandsMost), commands <= idleCommandsMost)
	f.judge(name+"share of a core", share, fmt.Sprintf("%.2f %% (at most %.0f %%)", 100*share, 100*idleCoreMost), share <= idleCoreMost)
	f.judge(name+"oldest view", oldest.Seconds(), fmt.Sprintf("%d ms (below %v)", oldest.Milliseconds(), idleViewMost), oldest < idleViewMost)
	return nil
}
