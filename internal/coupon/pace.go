package coupon

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

const (
	// paceWindow is how far back a pace looks.
	paceWindow = 5 * time.Second
	// paceChange is by which factor the time per request of two batches in a row must
	// differ from the pace, in the same direction, for the earlier ones to be dropped.
	paceChange = 1.3
	// paceBatchMin is the number of requests that a smaller batch counts as. A batch of
	// one takes about as long as a batch of a hundred, so it says little about a line.
	paceBatchMin = 100
	// waitMin is the shortest estimate. The request that is next waits, too: the issuer
	// reads it and commits its batch.
	waitMin = 10 * time.Millisecond
	// serviceTimeAssumed is the time per request that estimates assume before the first
	// batch is settled.
	serviceTimeAssumed = time.Millisecond
)

// pace measures the time per settled request: the time that the batches of the last
// seconds took, divided by their requests. When the speed of the database changes, it
// drops what it measured before, from the second batch on. A single slow batch does
// not count as a change, except the first.
type pace struct {
	ended   time.Time // of the latest batch; zero after a rest
	batches []pacedBatch
	odd     int // batches in a row that were slower (positive) or faster (negative) than the pace
}

type pacedBatch struct {
	took     time.Duration
	requests int
}

func (b pacedBatch) each() time.Duration {
	return max(b.took/time.Duration(b.requests), time.Microsecond)
}

// rest says that nobody waited after the latest batch.
func (p *pace) rest() { p.ended = time.Time{} }

// settled adds a batch, whose settlement began at a time, and returns the time per
// request. Without a rest, the batch counts from the end of the previous one: people
// in line wait for everything in between, too.
func (p *pace) settled(requests int, began time.Time) time.Duration {
	now := time.Now()
	if !p.ended.IsZero() {
		began = p.ended
	}
	p.ended = now
	b := pacedBatch{took: now.Sub(began), requests: max(requests, paceBatchMin)}
	if len(p.batches) > 0 {
		switch share := float64(b.each()) / float64(p.each()); {
		case share > paceChange:
			p.odd = max(p.odd, 0) + 1
		case share < 1/paceChange:
			p.odd = min(p.odd, 0) - 1
		default:
			p.odd = 0
		}
		switch {
		case p.odd != 0 && len(p.batches) == 1:
			p.batches, p.odd = nil, 0
		case p.odd > 1 || p.odd < -1:
			p.batches, p.odd = p.batches[len(p.batches)-1:], 0
		}
	}
	p.batches = append(p.batches, b)
	for total := p.sum().took; len(p.batches) > 1 && total > paceWindow; p.batches = p.batches[1:] {
		total -= p.batches[0].took
	}
	return p.each()
}

func (p *pace) sum() (sum pacedBatch) {
	for _, b := range p.batches {
		sum.took += b.took
		sum.requests += b.requests
	}
	return sum
}

func (p *pace) each() time.Duration { return p.sum().each() }

// waitOf estimates the wait of a request with a rank. A long line is settled in batches
// of batchMax, so each request in a batch waits for its end. A serviceTime of zero means
// that none has been measured.
func waitOf(rank int64, serviceTime time.Duration) time.Duration {
	if serviceTime == 0 {
		serviceTime = serviceTimeAssumed
	}
	requests := rank + 1
	if requests > batchMax {
		requests = (requests + batchMax - 1) / batchMax * batchMax
	}
	return max(time.Duration(requests)*serviceTime, waitMin)
}

// drawWait estimates the wait of an entrant of a draw, which is held at the opening.
func drawWait(t *reward.CouponTemplate) time.Duration {
	return max(time.Until(t.OpensAt), waitMin)
}
