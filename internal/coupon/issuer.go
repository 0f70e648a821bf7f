package coupon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// batchMax limits the requests of one transaction.
	batchMax = 1000
	// attemptsMax is how often the database may find a single request invalid before
	// the issuer rejects it with ReasonError.
	attemptsMax = 3
	// After gapsMax batches in a row that left a gap, the gate is loaded again. A gap is a ticket that is missing. Normally the next claim returns
	// its request. If not, someone has deleted the request manually. Its user is still
	// in the waiting line, and a load creates the requests again from that line.
	gapsMax = 5
	// usualMax is the number of failures in a row that are not logged, if a claim
	// normally resolves their cause.
	usualMax        = 4
	issueBackoff    = 20 * time.Millisecond
	issueBackoffMax = time.Second
)

// Issuer issues the coupons of one template in ticket order, as long as it has the
// template's latest epoch. Every transaction checks the epoch. So an issuer that was
// stalled or disconnected settles nothing after another instance has taken over.
type Issuer struct {
	parts
	id    reward.TemplateID
	epoch int64

	hint service.Hint // given when there may be requests
	pace pace
	// alone makes the issuer settle requests one by one, because the database found
	// invalid data in a batch.
	alone    bool
	attempts int // how often the database found the present request invalid
	gaps     int // batches in a row that left a gap
}

// errEpochLost means that another instance issues this template now.
var errEpochLost = errors.New("the template was assigned to another instance")

// A claim normally resolves these errors, so run logs them only if they last.
var (
	errStale = errors.New("the requests were read from a gate of another generation")
	errGap   = errors.New("a ticket is missing between the settled tickets and the pending ones")
)

// run issues until ctx ends or another instance has a newer epoch. Normally it reads
// new requests. In these cases it claims delivered requests instead, until a claim
// returns none:
//   - at the start,
//   - after each failure (a gap is one),
//   - after a reload of the gate,
//   - when a read returns nothing although the stream has requests.
func (i *Issuer) run(ctx context.Context) {
	claim, tries := true, 0
	report := i.log.Streak("issuing coupons failed", "")
	for ctx.Err() == nil {
		step, err := i.round(ctx, claim)
		switch {
		case errors.Is(err, errEpochLost):
			i.log.Info("template reassigned, issuer stopped", "template_id", i.id, "epoch", i.epoch)
			return
		case err != nil && ctx.Err() == nil:
			// The claim of the next round normally resolves these causes. Log them only
			// if they last.
			if usual := errors.Is(err, errStale) || errors.Is(err, errGap) || errors.Is(err, gate.ErrNotLoaded); !usual || tries >= usualMax {
				report(err, "template_id", i.id, "attempt", tries+1)
			}
			service.Sleep(ctx, service.Backoff(tries, issueBackoff, issueBackoffMax))
			claim = true
			tries++
			continue
		}
		tries = 0
		report(nil)
		if claim = step == claimNext; step != waitForHint {
			continue
		}
		i.pace.rest()
		select {
		case <-i.hint:
		case <-ctx.Done():
		}
	}
}

type nextStep int

const (
	waitForHint nextStep = iota
	readNext
	claimNext
)

func (i *Issuer) round(ctx context.Context, claim bool) (nextStep, error) {
	var hand gate.Delivery
	var err error
	if claim {
		hand, err = i.gate.Claim(ctx, i.id, i.instance, 0, batchMax)
	} else {
		hand, err = i.gate.Read(ctx, i.id, i.instance, batchMax)
	}
	if errors.Is(err, gate.ErrNotLoaded) {
		return i.reload(ctx)
	}
	if err != nil {
		return waitForHint, err
	}
	if len(hand.Requests) > 0 {
		if claim {
			apply, err := i.commit(ctx, hand)
			if err == nil {
				err = apply()
			}
			return claimNext, err
		}
		return readNext, i.pipeline(ctx, hand)
	}
	if claim {
		return readNext, nil
	}
	h, err := gatekeeper.HeaderOf(ctx, i.gate, i.id)
	if err == nil && h.Loaded && h.Backlog > 0 {
		return claimNext, nil
	}
	return waitForHint, err
}

// reload loads a gate that exists but must not be served (see served). If there is
// no gate, no request waits, and the next request loads the gate.
func (i *Issuer) reload(ctx context.Context) (nextStep, error) {
	h, err := gatekeeper.HeaderOf(ctx, i.gate, i.id)
	if err != nil || !h.Exists {
		return waitForHint, err
	}
	if err := i.loader.Ensure(ctx, i.id); err != nil {
		return waitForHint, gatekeeper.Ignore(err, gatekeeper.ErrNotNow)
	}
	return claimNext, nil
}

// pipeline handles requests as long as reads return more. It reads the next
// batch and applies the previous one to the gate while it commits a batch.
func (i *Issuer) pipeline(ctx context.Context, hand gate.Delivery) error {
	applied := make(chan error, 1) // result of applying the previous batch
	applied <- nil
	// After a failed read, the last apply still runs: wait for it. Its error is
	// dropped, because the next round claims in any case.
	defer func() { _ = <-applied }() //nolint:staticcheck // only the wait matters
	for len(hand.Requests) > 0 {
		type reading struct {
			hand gate.Delivery
			err  error
		}
		ahead := make(chan reading, 1)
		go func() {
			hand, err := i.gate.Read(ctx, i.id, i.instance, batchMax)
			ahead <- reading{hand, err}
		}()
		apply, err := i.commit(ctx, hand)
		next := <-ahead
		if previous := <-applied; err == nil {
			err = previous
		}
		if err != nil {
			applied <- nil
			return err
		}
		go func() { applied <- apply() }()
		if hand = next.hand; next.err != nil {
			return next.err
		}
	}
	err := <-applied
	applied <- nil
	return err
}

// commit settles requests, or publishes them to the broker in KAFKA mode. The caller
// must then call apply, which brings the result to the gate, in the order of commits.
func (i *Issuer) commit(ctx context.Context, hand gate.Delivery) (apply func() error, err error) {
	t, err := i.templates.Get(ctx, i.id)
	if err != nil {
		return nil, err
	}
	if t.Mode == reward.ModeKafka {
		return i.forward(ctx, hand.Requests)
	}
	if !i.alone {
		return i.settle(ctx, t, hand)
	}
	for _, r := range hand.Requests {
		apply, err := i.settle(ctx, t, gate.Delivery{Generation: hand.Generation, Requests: []gate.Request{r}})
		if err != nil {
			return nil, err
		}
		if err := apply(); err != nil {
			return nil, err
		}
	}
	i.alone = false
	return func() error { return nil }, nil
}

// forward publishes requests to the broker. Until a request is acknowledged at
// the gate, it may be published again.
func (i *Issuer) forward(ctx context.Context, requests []gate.Request) (apply func() error, err error) {
	if err := i.topic.Publish(ctx, i.id, requests); err != nil {
		return nil, err
	}
	return func() error { return i.acknowledge(ctx, requests) }, nil
}

// acknowledge removes settled or forwarded requests from the gate's stream.
func (i *Issuer) acknowledge(ctx context.Context, requests []gate.Request) error {
	tickets := make(map[int64][]int64)
	for _, r := range requests {
		tickets[r.Generation] = append(tickets[r.Generation], r.Ticket)
	}
	for generation, list := range tickets {
		if _, err := i.gate.Ack(ctx, i.id, generation, list); err != nil {
			return err
		}
	}
	return nil
}

// settle settles requests in one transaction. apply applies the change to the
// gate and acknowledges the settled requests.
func (i *Issuer) settle(ctx context.Context, t *reward.CouponTemplate, hand gate.Delivery) (apply func() error, err error) {
	began := time.Now()
	result, err := i.rows.CouponSettle(ctx, i.settleParams(t, hand, began))
	if err != nil {
		return nil, i.afterFailure(hand.Requests, err)
	}
	i.attempts = 0
	switch result.Refused {
	case rules.NotRefused:
	case rules.RefusedEpoch, rules.RefusedArchived:
		return nil, errEpochLost
	default:
		// Another generation, or the database path: the gate that gave these requests
		// must not be served any more.
		i.templates.Hint()
		if _, err := i.reload(ctx); err != nil {
			return nil, err
		}
		return nil, errStale
	}
	with, done, gap := i.outcomes(hand.Requests, result, began)
	return func() error {
		if err := i.applier.Apply(ctx, i.id, &result.CouponChange, with); err != nil {
			return err
		}
		if err := i.acknowledge(ctx, done); err != nil {
			return err
		}
		i.settled(i.id)
		return i.reloadOnGap(ctx, gap, hand.Generation)
	}, nil
}

// reloadOnGap reloads the gate of a generation when a gap lasts for gapsMax batches. It
// returns errGap for a gap that may still close.
func (i *Issuer) reloadOnGap(ctx context.Context, gap bool, generation int64) error {
	if !gap {
		i.gaps = 0
		return nil
	}
	i.gaps++
	if i.gaps < gapsMax {
		return errGap
	}
	i.gaps = 0
	i.log.Error("ticket missing, reloading gate", errGap, "template_id", i.id)
	return i.loader.Remake(ctx, i.id, generation)
}

func (i *Issuer) settleParams(t *reward.CouponTemplate, hand gate.Delivery, now time.Time) store.CouponSettleParams {
	p := store.CouponSettleParams{
		TemplateID: i.id, Known: t, Kind: rules.SettleInOrder, Epoch: i.epoch, Generation: hand.Generation, Now: now,
		Requests: make([]rules.CouponRequest, len(hand.Requests)),
	}
	for n, r := range hand.Requests {
		p.Requests[n] = newAsk(i.ids, t, r.UserID, r.Generation, r.Ticket)
		if i.alone && i.attempts >= attemptsMax {
			p.Requests[n].Reason = reward.ReasonError
		}
	}
	return p
}

// afterFailure decides how to continue after a failed transaction, and returns err.
// If the database finds invalid data in a batch, the issuer settles the requests one
// by one. A request that is invalid attemptsMax times is rejected, so that it does not
// block the waiting line. Any other failure is temporary.
func (i *Issuer) afterFailure(requests []gate.Request, err error) error {
	if !reward.HasCode(err, reward.CodeInvalid) {
		i.attempts = 0 // the request is not the cause
		return err
	}
	if i.alone {
		i.attempts++
	}
	i.alone = true
	if i.attempts == attemptsMax {
		i.log.Error("coupon request invalid, rejecting it", err, "template_id", i.id, "ticket", requests[0].Ticket)
	}
	return err
}

// outcomes counts the results of settled requests and measures the service time. It
// returns what to apply to the gate in addition to the change, the requests to
// acknowledge, and whether there is a gap.
func (i *Issuer) outcomes(requests []gate.Request, result store.CouponSettleResult, began time.Time) (with gatekeeper.Extras, done []gate.Request, gap bool) {
	var issued, rejected int
	for n, r := range result.Results {
		request := requests[n]
		switch r.Outcome {
		case rules.RequestIssued, rules.RequestRejected:
			with.Outcomes = append(with.Outcomes, gate.Outcome{
				UserID: request.UserID, Ticket: request.Ticket, CouponID: r.Coupon.ID, Reason: r.Reason,
			})
			if r.Outcome == rules.RequestIssued {
				issued++
			} else {
				rejected++
				i.metrics.CouponRejected(i.id, r.Reason)
			}
			done = append(done, request)
			with.Done = append(with.Done, request)
		case rules.RequestAlreadySettled:
			done = append(done, request)
		default:
			gap = true
		}
	}
	i.metrics.CouponsIssued(i.id, issued)
	with.ServiceTime = i.average
	if n := issued + rejected; n > 0 && i.average == 0 {
		with.ServiceTime = i.pace.settled(n, began)
	}
	return with, done, gap
}

const (
	// leasePrefix starts the name of the lease that each issuing instance holds.
	leasePrefix = "coupon issuer "
	leaseTTL    = 2 * time.Second
	// standInLease is taken only to learn who holds the leases of issuing instances, so its
	// name does not begin with leasePrefix.
	standInLease   = "coupon stand-in"
	assignInterval = 400 * time.Millisecond
	assignTimeout  = time.Second // of the database calls of one round
)

// IssuerManager runs an Issuer for each template assigned to this instance.
//
// While there are active templates, every issuing instance holds a lease under its own
// name. A hash of template and instance name assigns each template to one of the
// instances that hold a lease. If an instance crashes, others take over its templates
// within 3 s. For a moment, two instances may read different leases and both take a
// template. Each take gives the template a new epoch, and only the instance with the
// latest epoch can issue.
type IssuerManager struct {
	parts

	mu      sync.Mutex // protects issuers
	issuers map[reward.TemplateID]*runningIssuer
}

// runningIssuer is an Issuer and its goroutine.
type runningIssuer struct {
	issuer *Issuer
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
}

// run starts and stops issuers until ctx ends. It then stops all of them and
// releases the lease.
func (m *IssuerManager) run(ctx context.Context) {
	m.repeat("assigning templates failed", assignInterval, m.round)(ctx)
	m.retain(nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), assignTimeout)
	defer cancel()
	if err := m.rows.LeaseRelease(ctx, leasePrefix+m.instance, m.instance); err != nil {
		m.log.Warn("releasing lease failed", err, "lease", leasePrefix+m.instance)
	}
}

// round renews the lease, stops the issuers of templates that belong to other
// instances, and starts those of its own. While no template is active it renews
// nothing, so the lease expires. The first instance that then sees templates may take
// all of them, and the others get theirs when they have taken their leases again.
func (m *IssuerManager) round(ctx context.Context) (more bool, err error) {
	active := m.templates.Active()
	if len(active) == 0 {
		m.retain(nil)
		return false, nil
	}
	call, cancel := context.WithTimeout(ctx, assignTimeout)
	defer cancel()
	lease, err := m.rows.LeaseTake(call, store.LeaseTakeParams{
		Name: leasePrefix + m.instance, Owner: m.instance, TTL: leaseTTL, Among: leasePrefix,
	})
	if err != nil {
		return false, err
	}
	assigned := make(map[reward.TemplateID]bool)
	var take []reward.TemplateID
	for _, t := range active {
		if store.Holder(uint64(t.ID), lease.Holders) != m.instance { //nolint:gosec // any bits do
			continue
		}
		if m.runs(t.ID, t.Epoch) {
			assigned[t.ID] = true
		} else {
			take = append(take, t.ID)
		}
	}
	m.retain(assigned)
	for batch := range slices.Chunk(take, store.BatchMax) {
		epochs, err := m.rows.TemplateAssign(call, batch, m.instance)
		if err != nil {
			return false, err
		}
		for id, epoch := range epochs {
			m.start(ctx, id, epoch)
		}
	}
	return false, nil
}

// runs reports whether an issuer of the template runs with this epoch or a newer
// one. An issuer that has noticed that its epoch is lost has ended.
func (m *IssuerManager) runs(id reward.TemplateID, epoch int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.issuers[id]
	return one != nil && one.issuer.epoch >= epoch && !one.ended()
}

func (i *runningIssuer) ended() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

// retain stops all issuers except those of the given templates, and waits until
// they have ended.
func (m *IssuerManager) retain(templates map[reward.TemplateID]bool) {
	m.mu.Lock()
	var ended []*runningIssuer
	for id, one := range m.issuers {
		if !templates[id] {
			delete(m.issuers, id)
			ended = append(ended, one)
		}
	}
	m.mu.Unlock()
	for _, one := range ended {
		one.cancel()
	}
	for _, one := range ended {
		<-one.done
	}
}

func (m *IssuerManager) start(ctx context.Context, id reward.TemplateID, epoch int64) {
	ctx, cancel := context.WithCancel(ctx)
	one := &runningIssuer{issuer: &Issuer{parts: m.parts, id: id, epoch: epoch, hint: service.NewHint()}, cancel: cancel, done: make(chan struct{})}
	m.mu.Lock()
	m.issuers[id] = one
	m.mu.Unlock()
	m.log.Info("issuer started", "template_id", id, "epoch", epoch)
	go func() {
		defer close(one.done)
		defer cancel()
		one.issuer.run(ctx)
	}()
}

// GiveHint makes the template's issuer look for requests, if it runs here.
func (m *IssuerManager) GiveHint(id reward.TemplateID) {
	m.mu.Lock()
	one := m.issuers[id]
	m.mu.Unlock()
	if one != nil {
		one.issuer.hint.Give()
	}
}

// Epochs returns the epochs of the templates that this instance issues.
func (m *IssuerManager) Epochs() map[reward.TemplateID]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[reward.TemplateID]int64, len(m.issuers))
	for id, one := range m.issuers {
		out[id] = one.issuer.epoch
	}
	return out
}

// AnyAlive reports whether any instance that issues coupons is alive.
func (m *IssuerManager) AnyAlive(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, assignTimeout)
	defer cancel()
	lease, err := m.rows.LeaseTake(ctx, store.LeaseTakeParams{Name: standInLease, Owner: m.instance, TTL: leaseTTL, Among: leasePrefix})
	return len(lease.Holders) > 0, err
}

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
