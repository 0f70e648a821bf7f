package coupon

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// batchMax is how many requests one transaction settles at most.
	batchMax = 1000
	// failuresMax is how often the database may refuse a request alone before it
	// is refused ReasonError.
	attemptsMax     = 3
	issueBackoff    = 20 * time.Millisecond // after a failure, doubled up to issueLimit
	issueBackoffMax = time.Second
	// serviceWeight is the weight of the newest batch in the measured service
	// time.
	serviceWeight = 0.2
)

// Issuer turns the requests of one template into coupons, in the order of
// tickets, for as long as it has the template's epoch: the transaction checks
// it, so that one who was paused, or cut off, settles nothing more.
// [CouponIssueRequestConsumer]
type Issuer struct {
	id        reward.TemplateID
	epoch     int64
	instance  string
	rows      store.Store
	gate      gate.Gate
	loader    *Loader
	applier   *Applier
	templates *TemplateCache
	topic     *IssueTopic // KAFKA: where requests go instead
	ids       *service.IDs
	metrics   *obs.Metrics
	log       obs.Log
	settled   func(id reward.TemplateID) // after each batch
	// average is the time per person that was set; 0 = it is measured.
	average time.Duration

	hint        chan struct{}
	serviceTime time.Duration // measured, per person
	// alone says that requests go one by one, since a batch has failed.
	alone    bool
	failures int
	gaps     int // claims in a row that left a gap
}

// errLost says that somebody else issues this template now.
var errEpochLost = errors.New("another instance has the template")

// wake makes the issuer look for requests.
func (i *Issuer) giveHint() {
	select {
	case i.hint <- struct{}{}:
	default:
	}
}

// run issues until ctx ends or the epoch is lost. It claims what is pending
// first, after each failure, at a gap, and when a read brings nothing while
// there are requests.
func (i *Issuer) run(ctx context.Context) {
	claim, tries := true, 0
	for ctx.Err() == nil {
		more, err := i.round(ctx, claim)
		switch {
		case errors.Is(err, errEpochLost):
			i.log.Info(obs.Stopped, "template_id", i.id, "epoch", i.epoch)
			return
		case err != nil && ctx.Err() == nil:
			// Another generation, or a gap, is claimed anew; that it lasts is worth a
			// line.
			if usual := errors.Is(err, errStale) || errors.Is(err, errGap) || errors.Is(err, gate.ErrNotLoaded); tries&(tries-1) == 0 && (!usual || tries >= 4) {
				i.log.Warn(obs.Failed, err, "template_id", i.id, "tries", tries+1)
			}
			service.Sleep(ctx, service.Backoff(tries, issueBackoff, issueBackoffMax))
			claim = true
			tries++
			continue
		}
		tries = 0
		if claim = more == claimNext; more != waitForHint {
			continue
		}
		select {
		case <-i.hint:
		case <-ctx.Done():
		}
	}
}

// next is what a round leaves to do.
type nextStep int

const (
	waitForHint nextStep = iota
	readNext
	claimNext
)

// round takes requests and settles them.
func (i *Issuer) round(ctx context.Context, claim bool) (nextStep, error) {
	var hand []gate.Request
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
	if len(hand) > 0 {
		if claim {
			return claimNext, i.handle(ctx, hand)
		}
		return readNext, i.pipeline(ctx, hand)
	}
	if claim {
		return readNext, nil
	}
	h, err := i.gate.Headers(ctx, []reward.TemplateID{i.id})
	if err != nil {
		return waitForHint, err
	}
	if h[0].Loaded && h[0].Backlog > 0 {
		return claimNext, nil
	}
	return waitForHint, nil
}

// reload loads a gate that somebody stands in line at. Without one nobody
// waits, and the next who asks loads it.
func (i *Issuer) reload(ctx context.Context) (nextStep, error) {
	h, err := i.gate.Headers(ctx, []reward.TemplateID{i.id})
	if err != nil || !h[0].Exists {
		return waitForHint, err
	}
	if err := i.loader.ensure(ctx, i.id); err != nil {
		if errors.Is(err, errNotNow) {
			return waitForHint, nil
		}
		return waitForHint, err
	}
	return claimNext, nil
}

// flow handles requests for as long as reads bring more: the next are read
// while these are settled, and the gate hears of the last ones meanwhile.
func (i *Issuer) pipeline(ctx context.Context, hand []gate.Request) error {
	told := make(chan error, 1) // of the batch before
	told <- nil
	defer func() { _ = <-told }() //nolint:staticcheck // waits for it; its error was looked at
	for len(hand) > 0 {
		type reading struct {
			hand []gate.Request
			err  error
		}
		ahead := make(chan reading, 1)
		go func() {
			hand, err := i.gate.Read(ctx, i.id, i.instance, batchMax)
			ahead <- reading{hand, err}
		}()
		tell, err := i.commit(ctx, hand)
		next := <-ahead
		if before := <-told; err == nil {
			err = before
		}
		if err != nil {
			told <- nil
			return err
		}
		go func() { told <- tell() }()
		if hand = next.hand; next.err != nil {
			return next.err
		}
	}
	err := <-told
	told <- nil
	return err
}

// handle handles requests, to the end.
func (i *Issuer) handle(ctx context.Context, hand []gate.Request) error {
	tell, err := i.commit(ctx, hand)
	if err != nil {
		return err
	}
	return tell()
}

// commit makes requests safe: in rows, or with the broker. What is left is to
// tell the gate, in the order of commits.
func (i *Issuer) commit(ctx context.Context, hand []gate.Request) (tell func() error, err error) {
	t, err := i.templates.get(ctx, i.id)
	if err != nil {
		return nil, err
	}
	if t.Mode == reward.ModeKafka {
		return i.forward(ctx, hand)
	}
	if !i.alone {
		return i.settle(ctx, hand)
	}
	for _, r := range hand {
		tell, err := i.settle(ctx, []gate.Request{r})
		if err != nil {
			return nil, err
		}
		if err := tell(); err != nil {
			return nil, err
		}
	}
	i.alone = false
	return func() error { return nil }, nil
}

// forward hands requests to the broker. A request is the broker's when it is
// gone from the gate; until then a publish may be repeated.
func (i *Issuer) forward(ctx context.Context, hand []gate.Request) (tell func() error, err error) {
	if err := i.topic.publish(ctx, i.id, hand); err != nil {
		return nil, err
	}
	return func() error { return i.acknowledge(ctx, hand) }, nil
}

// acknowledge removes requests that are settled, or the broker's, from the
// stream.
func (i *Issuer) acknowledge(ctx context.Context, hand []gate.Request) error {
	tickets := make(map[int64][]int64)
	for _, r := range hand {
		tickets[r.Generation] = append(tickets[r.Generation], r.Ticket)
	}
	for generation, list := range tickets {
		if _, err := i.gate.Ack(ctx, i.id, generation, list); err != nil {
			return err
		}
	}
	return nil
}

// settle turns requests into coupons in one transaction. What is left is to tell
// the gate, and to acknowledge what the rows say is settled.
func (i *Issuer) settle(ctx context.Context, hand []gate.Request) (tell func() error, err error) {
	began := time.Now()
	result, err := i.rows.CouponSettle(ctx, i.settleParams(hand, began))
	if err != nil {
		return nil, i.afterFailure(hand, err)
	}
	i.failures = 0
	switch result.Refused {
	case store.NotRefused:
	case store.RefusedEpoch:
		return nil, errEpochLost
	default:
		// Another generation: the gate these came from is not the one that
		// counts any more.
		i.templates.hint()
		if _, err := i.reload(ctx); err != nil {
			return nil, err
		}
		return nil, errStale
	}
	with, done, gap := i.outcomes(hand, result, time.Since(began))
	return func() error {
		if err := i.applier.apply(ctx, i.id, &result.CouponChange, with); err != nil {
			return err
		}
		if err := i.acknowledge(ctx, done); err != nil {
			return err
		}
		i.settled(i.id)
		return i.reloadOnGap(ctx, gap)
	}, nil
}

// gapsMax is how many claims in a row may leave a gap. In our own course one
// closes it; what is left is a request that somebody has deleted by hand. Its
// owner is in line all the same, and a load makes the stream anew from the line.
const gapsMax = 5

// mend loads the gate anew when a gap does not close.
func (i *Issuer) reloadOnGap(ctx context.Context, gap bool) error {
	if !gap {
		i.gaps = 0
		return nil
	}
	i.gaps++
	if i.gaps < gapsMax {
		return errGap
	}
	i.gaps = 0
	i.log.Error(obs.Unbalanced, errGap, "template_id", i.id)
	return i.loader.reload(ctx, i.id, math.MaxInt64)
}

// What makes a round begin anew with a claim.
var (
	errStale = errors.New("the requests are of an earlier generation")
	errGap   = errors.New("a ticket is missing between the settled and those in hand")
)

func (i *Issuer) settleParams(hand []gate.Request, now time.Time) store.CouponSettleParams {
	p := store.CouponSettleParams{
		TemplateID: i.id, Kind: store.SettleInOrder, Epoch: i.epoch, Generation: hand[0].Generation, Now: now,
		Asks: make([]store.CouponAsk, len(hand)),
	}
	for n, r := range hand {
		p.Asks[n] = store.CouponAsk{
			UserID: r.UserID, Generation: r.Generation, Ticket: r.Ticket,
			CouponID: reward.CouponID(i.ids.Next()), Code: reward.NewCouponCode(),
		}
		if i.alone && i.failures >= attemptsMax {
			p.Asks[n].Reason = reward.ReasonError
		}
	}
	return p
}

// failed decides what a failure of the database means. When it refuses what it
// was given, the requests go one by one, and one that it refuses again and again
// is refused, so that it does not hold up the line. Any other failure passes.
func (i *Issuer) afterFailure(hand []gate.Request, err error) error {
	if !reward.HasCode(err, reward.CodeInvalid) {
		i.failures = 0 // it is not the request's fault
		return err
	}
	if i.alone {
		i.failures++
	}
	i.alone = true
	if i.failures == attemptsMax {
		i.log.Error(obs.GivenUp, err, "template_id", i.id, "ticket", hand[0].Ticket)
	}
	return err
}

// outcomes sorts out what became of the requests in hand.
func (i *Issuer) outcomes(hand []gate.Request, result store.CouponSettleResult, took time.Duration) (with applyExtras, done []gate.Request, gap bool) {
	var issued, rejected int
	for n, r := range result.Results {
		switch r.Outcome {
		case store.OutcomeIssued, store.OutcomeRejected:
			with.outcomes = append(with.outcomes, gate.Outcome{
				UserID: hand[n].UserID, Ticket: hand[n].Ticket, CouponID: r.Coupon.ID, Reason: r.Reason,
			})
			if r.Outcome == store.OutcomeIssued {
				issued++
			} else {
				rejected++
			}
			done = append(done, hand[n])
			with.done = append(with.done, gate.SettledTicket{UserID: hand[n].UserID, Ticket: hand[n].Ticket})
		case store.OutcomeBefore:
			done = append(done, hand[n])
		default:
			gap = true
		}
	}
	i.metrics.CouponsIssued(issued)
	i.metrics.CouponsRejected(rejected)
	with.serviceTime = i.average
	if n := issued + rejected; n > 0 && i.average == 0 {
		each := took / time.Duration(n)
		if i.serviceTime == 0 {
			i.serviceTime = each
		}
		i.serviceTime += time.Duration(serviceWeight * float64(each-i.serviceTime))
		with.serviceTime = max(i.serviceTime, time.Microsecond)
	}
	return with, done, gap
}
