package engine

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	monitorInterval = 800 * time.Millisecond
	// silentMax is the number of checks in a row without an answer after which a
	// server counts as unavailable. A single one may have met a full connection pool.
	// A server that refuses a check counts as unavailable at once.
	silentMax = 2
	// viewLateAfter is the age of the view above which the instance counts as
	// degraded. No new charge starts with a view older than 1 s, so a slow read
	// alone is not reported.
	viewLateAfter = 3 * time.Second
	// fullFor is how long the disk of the database counts as full after a transaction
	// found no space. It is longer than the pauses after which work that waits is
	// tried again.
	fullFor = 15 * time.Second
	// refusedFor is how long the database counts as refusing connections or writes after
	// it refused one. An instance asks for a connection only when it needs one.
	refusedFor = 15 * time.Second
	// skewMax is the difference to the database's clock above which the instance
	// counts as degraded. Times of different instances meet in rows: due times,
	// schedules and leases.
	skewMax = 2 * time.Second
	// skewInterval separates measurements of the database's clock.
	skewInterval = 10 * time.Second
)

// monitor checks what this instance depends on, and reports what degrades it.
type monitor struct {
	pulse    *pulse
	troubles *obs.Troubles
	// viewAge returns the age of the view of the promotions.
	viewAge func() time.Duration
	// fullAt returns when the disk of the database was last found to be full.
	fullAt func() time.Time
	// refusal returns when the database last refused a connection or a write, and what
	// that means.
	refusal func() (time.Time, string)
	// clock returns the time of the database.
	clock func(ctx context.Context) (time.Time, error)
	// began is when run began, and askedAt when it last read the clock; only run uses
	// these.
	began, askedAt time.Time
	silent         map[string]int // checks in a row without an answer, by part; only run uses it
}

// outage is what the unavailability of a part means. A server that answers in words
// of its own refuses what the part needs.
type outage struct{ part, server, effect string }

var outages = map[string]outage{
	partStore: {obs.PartDatabase, "the database", "nothing is saved, dispatched or charged on this instance until it does"},
	partQueue: {partQueue, "Redis", "payouts wait in the database until it does"},
	partKafka: {partKafka, "Kafka", "its records wait until it does; payouts in the database are paid"},
}

func (o outage) reason(err error) string {
	if reason := service.Refusal(err, o.server, "this instance needs", o.effect); reason != "" {
		return reason
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return o.server + " accepts no connection: " + o.effect + "; check its address, and that it runs"
	}
	return o.server + " did not answer within 1 s: " + o.effect
}

func (m *monitor) run(ctx context.Context) {
	m.began, m.silent = time.Now(), make(map[string]int)
	for ctx.Err() == nil {
		if again := m.check(ctx); !again {
			service.Sleep(ctx, service.Jitter(monitorInterval, 0.1))
		}
	}
}

// check checks everything once. It reports whether a part is silent for the first time,
// so that the next check, which decides whether it is unavailable, is due at once.
func (m *monitor) check(ctx context.Context) (again bool) {
	fails := m.pulse.check()
	for name, o := range outages {
		err := fails[name]
		switch {
		case err == nil:
			m.silent[name] = 0
		case service.Words(err) != "":
			m.silent[name] = silentMax
		default:
			m.silent[name]++
		}
		if err != nil && m.silent[name] < silentMax {
			again = true
			continue // what was reported stays
		}
		if at, reason := m.refusal(); name == partStore && err == nil && time.Since(at) < refusedFor {
			m.troubles.Set(o.part, reason)
			continue
		}
		m.report(o.part, err != nil, o.reason(err))
	}
	age := min(m.viewAge(), time.Since(m.began)) // there is no view before the first read
	m.report(obs.PartView, age > viewLateAfter,
		"this instance could not read the promotions for more than 3 s, so it starts no charge: check its connection to the database")
	m.report(obs.PartDisk, time.Since(m.fullAt()) < fullFor,
		store.ErrFull.Error()+"; until then, what needs space fails or waits, and continues by itself")
	if fails[partStore] == nil && time.Since(m.askedAt) >= skewInterval {
		m.askedAt = time.Now()
		m.compareClocks(ctx)
	}
	return again
}

// compareClocks measures by how much the database's clock differs from this
// instance's. The reply took some time, so the difference is known to half of it.
func (m *monitor) compareClocks(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pulseTimeout)
	defer cancel()
	before := time.Now()
	there, err := m.clock(ctx)
	if err != nil {
		return // the pulse reports an outage
	}
	took := time.Since(before)
	skew := there.Sub(before.Add(took / 2))
	m.report(obs.PartDatabaseClock, skew.Abs()-took/2 > skewMax, fmt.Sprintf(
		"the database's clock and this instance's differ by %s: synchronize both, for example with NTP", skew.Abs().Round(time.Second)))
}

func (m *monitor) report(part string, is bool, reason string) {
	if is {
		m.troubles.Set(part, reason)
		return
	}
	m.troubles.Clear(part)
}
