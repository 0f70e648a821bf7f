//go:build nightly

package test

import (
	"os"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// TestNightlyEveryFaultAtOnce: 12,000 targets in four promotions (`make nightly`: 20,000) through a provider
// that does everything wrong at once, while instances are killed, one promotion
// is cancelled in the middle and one is paused and resumed again and again. Each
// target is charged at most once, every SUCCEEDED target was charged, every
// FAILED or CANCELLED was not, and nothing stays unknown that can be looked up.
func TestNightlyEveryFaultAtOnce(t *testing.T) {
	each := 3000
	if os.Getenv("LARGESSE_CHAOS_TARGETS") != "" {
		each = 5000
	}
	sim, simURL := startSim(t, moneysim.Faults{
		LatencyMs: 60, JitterMs: 40, ErrorRate: 0.03, RefuseRate: 0.02, TimeoutRate: 0.005, LostReplyRate: 0.02, SlowDripRate: 0.005,
		DuplicateRate: 0.02, ThrottleRate: 0.005, ResetBeforeRate: 0.01, ResetAfterRate: 0.01, UnavailableRate: 0.01,
	})
	c := &crowd{t: t, args: append(onServers(t), "--money-url", simURL,
		"--money-timeout", "1s", "--money-settle-after", "2s", "--redis-stream-lease-seconds", "3", "--redis-stream-in-flight-per-consumer", "8")}
	for range 3 {
		c.start()
	}
	r := rigOf(t, c.members[0], simURL)
	var ids []string
	var workloads []lab.Workload
	for range 4 {
		id, workload := r.create(each, false, client.NewPromotion{})
		ids, workloads = append(ids, id), append(workloads, workload)
	}
	cancelled, nervous := ids[0], ids[1]
	began, killAt, moveAt := time.Now(), time.Now().Add(4*time.Second), time.Now().Add(2*time.Second)
	over := func(p client.Promotion) bool {
		return p.Counts.Unknown == 0 && (p.Status == "COMPLETED" || p.Status == "CANCELLED" && p.FinishedAt != nil && p.Counts.Ready+p.Counts.Queued+p.Counts.Retrying == 0)
	}
	paused, wasCancelled, pauses := false, false, 0
	for left := len(ids); left > 0; {
		if time.Since(began) > 6*time.Minute {
			for _, id := range ids {
				p, _ := c.progress(id)
				t.Logf("%+v", p)
			}
			t.Fatal("not over after six minutes")
		}
		left = 0
		for _, id := range ids {
			p, ok := c.progress(id)
			if !ok || !over(p) {
				left++
			}
			if ok && id == cancelled && !wasCancelled && p.Counts.Succeeded > int64(each)/4 {
				fixture.Must(c.members[0].api.CancelPromotion(t.Context(), id))(t)
				wasCancelled = true
			}
			if ok && id == nervous && time.Now().After(moveAt) && (p.Status == "RUNNING" || p.Status == "PAUSED") {
				act := c.members[0].api.PausePromotion
				if p.Status == "PAUSED" {
					act = c.members[0].api.ResumePromotion
				}
				if _, err := act(t.Context(), id); err != nil {
					t.Logf("pause or resume: %v", err) // it was completed in this moment
				}
				paused, moveAt = p.Status == "RUNNING", time.Now().Add(2*time.Second)
				pauses++
			}
		}
		if time.Now().After(killAt) && left == len(ids) {
			c.replace()
			killAt = time.Now().Add(6 * time.Second)
		}
		time.Sleep(100 * time.Millisecond) // polls a condition
	}
	if paused || !wasCancelled || pauses < 2 {
		t.Errorf("paused %v, cancelled %v, %d pauses and resumes: the plan was not carried out", paused, wasCancelled, pauses)
	}
	ledger := fixture.Must(lab.ReadLedger(t.Context(), simURL))(t)
	keys := 0
	for i, id := range ids {
		checkStates(t, c.members[0], id, workloads[i], ledger[id])
		keys += len(ledger[id])
	}
	if charges := sim.Stats().Charges; int64(keys) != charges {
		t.Errorf("%d targets were charged, the provider made %d charges", keys, charges)
	}
	if n := sim.MaxChargesPerKey(); n != 1 {
		t.Errorf("a key was charged %d times", n)
	}
	stats := sim.Stats()
	t.Logf("%.0f s, %d instances, %d pauses and resumes: %d charges, %d calls, %d of them for a key that had been charged",
		time.Since(began).Seconds(), c.started, pauses, stats.Charges, stats.Requests, stats.DuplicateKeys)
}

// checkStates holds each row of a promotion against the ledger.
func checkStates(t *testing.T, p *process, id string, workload lab.Workload, ledger map[string]lab.Entry) {
	t.Helper()
	rows, wrong := 0, 0
	for row, err := range p.api.Payouts(t.Context(), id, client.PayoutFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		rows++
		_, charged := ledger[row.TargetID]
		if (row.State == "SUCCEEDED") != charged || row.State == "UNKNOWN" {
			if wrong++; wrong < 5 {
				t.Errorf("promotion %s, target %s is %s, charged: %v; %+v", id, row.TargetID, row.State, charged, row)
			}
		}
	}
	if rows != workload.Good || wrong > 0 {
		t.Errorf("promotion %s: %d rows of %d, %d wrong", id, rows, workload.Good, wrong)
	}
}
