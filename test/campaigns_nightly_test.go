//go:build nightly

package test

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// TestTwoCampaignsAtOnce: the program on real PostgreSQL, Redis and Kafka pays
// 100,000 uploaded targets and 100,000 published ones at the same time, through
// a provider of 20 ms that fails 2 % and loses 1 % of its replies.
func TestTwoCampaignsAtOnce(t *testing.T) {
	const targets = 100_000
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20, ErrorRate: 0.02, LostReplyRate: 0.01})
	name := "load_" + strings.ToLower(rand.Text()[:10])
	brokers := server(t, "LARGESSE_TEST_KAFKA")
	p := serve(t,
		"--data-dir", t.TempDir(), "--money-url", simURL,
		"--database-url", ownSchema(t, server(t, "LARGESSE_TEST_POSTGRES"), name),
		"--redis-url", server(t, "LARGESSE_TEST_REDIS"), "--redis-key-prefix", name+":",
		"--kafka-brokers", brokers, "--kafka-topic-prefix", name+"-",
	)
	r := rigOf(t, p, simURL)
	began := time.Now()
	type published struct {
		workload lab.Workload
		err      error
	}
	vouchers := make(chan published, 1)
	go func() {
		w, err := lab.Publishing{
			Brokers: []string{brokers}, TopicPrefix: name + "-", PromotionID: 5001, Voucher: true, Targets: targets, Malformed: 10,
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

// TestAnInstanceIsKilledBesideAnother: two instances share a promotion; one is
// killed in the middle, and the other one finishes what it held.
func TestAnInstanceIsKilledBesideAnother(t *testing.T) {
	const targets = 20_000
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20, JitterMs: 10, ErrorRate: 0.02, LostReplyRate: 0.01})
	name := "pair_" + strings.ToLower(rand.Text()[:10])
	database := ownSchema(t, server(t, "LARGESSE_TEST_POSTGRES"), name)
	start := func() *process {
		return serve(t,
			"--data-dir", t.TempDir(), "--money-url", simURL, "--database-url", database,
			"--redis-url", server(t, "LARGESSE_TEST_VALKEY"), "--redis-key-prefix", name+":",
			"--kafka-brokers", server(t, "LARGESSE_TEST_KAFKA"), "--kafka-topic-prefix", ownTopics(t, name),
			"--money-timeout", "1s", "--money-settle-after", "1s", "--redis-stream-lease-seconds", "3",
			"--redis-stream-in-flight-per-consumer", "16",
		)
	}
	a, b := start(), start()
	r := rigOf(t, b, simURL)
	id, workload := r.create(targets, false, client.NewPromotion{})
	r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > targets/4 })
	a.kill(t)
	r.until(id, "settled", settled)
	r.balance(id, workload)
	if n := sim.MaxChargesPerKey(); n != 1 {
		t.Errorf("a key was charged %d times", n)
	}
	if stats := sim.Stats(); stats.Charges != r.balance(id, workload).Charges {
		t.Errorf("the provider made %+v", stats)
	}
}
