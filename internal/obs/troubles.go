package obs

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Trouble is a state that degrades an instance: something that it needs does not
// work as it should, and part of its work waits.
type Trouble struct {
	Part   string    `json:"part"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// The parts that can be in trouble, apart from the servers, which have the names
// of the parts of largesse_up.
const (
	PartDatabase      = "database"       // the database is unavailable, or has too few free connections
	PartGate          = "gate"           // the gates of coupons are unavailable, or one of them
	PartProvider      = "provider"       // the circuit breaker is open, or the provider throttles
	PartRates         = "rates"          // what instances share of rates and the provider cannot be read
	PartRedisClock    = "redis-clock"    // Redis's clock is off
	PartDatabaseClock = "database-clock" // the database's clock is off
	PartDisk          = "disk"           // the disk of the database is full
	PartView          = "view"           // the view of the promotions is too old for new charges
	PartOutcomes      = "outcomes"       // outcomes of charges cannot be written
	PartStreams       = "streams"        // entries cannot be added to the streams
	PartTopics        = "kafka-topics"   // the brokers have not created the topics yet
	PartApproval      = "approval"       // instances differ in approval.above
	PartIssuer        = "issuer"         // no instance issues the coupons of users in line
)

// Troubles holds the troubles of one instance. The part that sees a trouble
// begin or end reports it; /readyz, the heartbeat and largesse_degraded show
// it. A nil Troubles is usable and holds nothing. All methods are safe for
// concurrent use.
type Troubles struct {
	log     Log
	metrics *Metrics

	mu   sync.Mutex
	open map[string]Trouble // by part
}

// NewTroubles returns a Troubles without any.
func NewTroubles(metrics *Metrics, log Log) *Troubles {
	return &Troubles{log: log, metrics: metrics, open: make(map[string]Trouble)}
}

// Set records that a part is in trouble for a reason. The first report of a
// part is logged; another reason replaces the one before. Set is cheap, so a
// caller may repeat it.
func (t *Troubles) Set(part, reason string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := t.open[part]
	if known && before.Reason == reason {
		return
	}
	if !known {
		before = Trouble{Part: part, Since: time.Now().UTC()}
		t.metrics.degraded(part, true)
		t.log.write(slog.LevelWarn, "instance degraded", []any{"part", part, "reason", reason})
	}
	before.Reason = reason
	t.open[part] = before
}

// Clear records that a part works again. It does nothing if the part was not in
// trouble.
func (t *Troubles) Clear(part string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := t.open[part]
	if !known {
		return
	}
	delete(t.open, part)
	t.metrics.degraded(part, false)
	t.log.write(slog.LevelInfo, "instance no longer degraded", []any{"part", part, "seconds", time.Since(before.Since).Seconds()})
}

// List returns the open troubles, sorted by part.
func (t *Troubles) List() []Trouble {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Trouble, 0, len(t.open))
	for _, x := range t.open {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Trouble) int { return cmp.Compare(a.Part, b.Part) })
	return out
}
