//go:build nightly

package test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// TestNightlyTwoCampaignsAtOnce: the program on real PostgreSQL, Redis and Kafka pays
// 100,000 uploaded targets and 100,000 published ones at the same time, through
// a provider of 20 ms that fails 2 % and loses 1 % of its replies.
func TestNightlyTwoCampaignsAtOnce(t *testing.T) {
	const targets = 100_000
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20, ErrorRate: 0.02, LostReplyRate: 0.01})
	on := onServers(t)
	p := serve(t, append(on, "--data-dir", t.TempDir(), "--money-url", simURL)...)
	r := rigOf(t, p, simURL)
	began := time.Now()
	type published struct {
		workload lab.Workload
		err      error
	}
	vouchers := make(chan published, 1)
	go func() {
		w, err := lab.Publishing{
			Brokers: strings.Split(flagOf(on, "--kafka-brokers"), ","), TopicPrefix: flagOf(on, "--kafka-topic-prefix"), PromotionID: 5001, Voucher: true, Targets: targets, Malformed: 10,
		}.Publish(t.Context())
		vouchers <- published{w, err}
	}()
	points, file := r.create(targets, true, client.NewPromotion{})
	sent := <-vouchers
	if sent.err != nil {
		t.Fatal(sent.err)
	}
	for _, id := range []string{points, "5001"} {
		r.until(id, "settled", settled)
	}
	t.Logf("%d payouts in %.1f s", 2*targets, time.Since(began).Seconds())
	a, b := r.balance(points, file), r.balance("5001", sent.workload)
	if a.Charges+b.Charges != sim.Stats().Charges || sim.MaxChargesPerKey() != 1 {
		t.Errorf("the provider made %d charges, the rows have %d; one key at most %d times", sim.Stats().Charges, a.Charges+b.Charges, sim.MaxChargesPerKey())
	}
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the program ended with %v: %s", err, p.stderr)
	}
}

// TestNightlyAnInstanceIsKilledBesideAnother: two instances share a promotion; one is
// killed in the middle, and the other one finishes what it held.
func TestNightlyAnInstanceIsKilledBesideAnother(t *testing.T) {
	const targets = 20_000
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20, JitterMs: 10, ErrorRate: 0.02, LostReplyRate: 0.01})
	valkey := fixture.Address(t, fleet.VariableValkey)
	args := append(onServers(t), "--redis-url", valkey, "--redis-key-prefix", fixture.Keys(t, valkey), "--money-url", simURL,
		"--money-timeout", "1s", "--money-settle-after", "1s", "--redis-stream-lease-seconds", "3", "--redis-stream-in-flight-per-consumer", "16")
	start := func() *process { return serve(t, append(slices.Clone(args), "--data-dir", t.TempDir())...) }
	a, b := start(), start()
	r := rigOf(t, b, simURL)
	id, workload := r.create(targets, false, client.NewPromotion{})
	r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > targets/4 })
	a.kill(t)
	checkCharges(t, sim, r.balance(id, workload))
}
