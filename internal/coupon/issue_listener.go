package coupon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// IssueListener settles the records of the coupon-issue topic, in KAFKA mode.
type IssueListener struct {
	parts
	intake      *Intake
	concurrency int // transactions at a time

	position bus.LogPosition // of the log that the records come from

	mu    sync.Mutex // protects paces
	paces map[reward.TemplateID]*pace
}

// Offsets returns where to continue reading each partition: after the settled
// records of the present log.
func (l *IssueListener) Offsets(ctx context.Context, topic string) (map[int32]int64, error) {
	return l.position.Start(ctx, l.topic.Inspector, topic, l.rows.OffsetsGet)
}

type issueRecord struct {
	bus.Record
	event reward.CouponIssueEvent
}

// external reports whether another system wrote the record: it has no ticket, and
// requests a coupon.
func (r issueRecord) external() bool { return r.event.Generation == 0 }

// ProcessTopicMessages settles a batch of records, and stores the offsets after
// them once all are settled. Each template has its own transactions. A repeated
// record finds its ticket settled.
func (l *IssueListener) ProcessTopicMessages(ctx context.Context, records []bus.Record) error {
	byTemplate := make(map[reward.TemplateID][]issueRecord)
	var dead []bus.DeadRecord
	hasExternal := false
	for _, r := range records {
		event, err := reward.ParseCouponIssueEvent(r.Value)
		if err != nil {
			dead = append(dead, bus.DeadRecord{Record: r, Reason: reward.CodeMalformed, Detail: err.Error()})
			continue
		}
		one := issueRecord{r, event}
		hasExternal = hasExternal || one.external()
		byTemplate[event.TemplateID] = append(byTemplate[event.TemplateID], one)
	}
	if len(byTemplate) == 1 && len(dead) == 0 && len(records) <= batchMax && !hasExternal {
		// In the common case, one transaction settles the records and stores the
		// offsets.
		for id, list := range byTemplate {
			stored, _, err := l.settleAll(ctx, id, list, l.nextOffsets(records))
			if stored || err != nil && refusesAll(err) == "" {
				return err
			}
		}
	}
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex // protects dead, errs, refused
		errs    []error
		refused []reward.TemplateID
		slots   = make(chan struct{}, l.concurrency)
	)
	for id, list := range byTemplate {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			_, never, err := l.settleAll(ctx, id, list, nil)
			mu.Lock()
			defer mu.Unlock()
			dead = append(dead, never...)
			if code := refusesAll(err); code != "" {
				refused = append(refused, id)
				for _, r := range list {
					dead = append(dead, bus.DeadRecord{Record: r.Record, Reason: code, Detail: err.Error()})
				}
				return
			}
			errs = append(errs, err)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, id := range refused {
		delete(byTemplate, id)
	}
	for _, list := range byTemplate {
		if err := l.requestExternal(ctx, list); err != nil {
			return err
		}
	}
	return l.saveOffsets(ctx, records, dead)
}

// refusesAll returns the code of an error after which every record of its template is a
// dead letter: the template does not exist, or is archived. Otherwise it returns "".
func refusesAll(err error) string {
	for _, code := range []string{reward.CodeTemplateNotFound, reward.CodeArchived} {
		if reward.HasCode(err, code) {
			return code
		}
	}
	return ""
}

func (l *IssueListener) nextOffsets(records []bus.Record) []store.Offset {
	log, next := l.position.After(records)
	var out []store.Offset
	for partition, offset := range next {
		out = append(out, store.Offset{Topic: log, Partition: partition, Next: offset})
	}
	return out
}

// saveOffsets stores the offsets after records, and dead letters, in one
// transaction.
func (l *IssueListener) saveOffsets(ctx context.Context, records []bus.Record, dead []bus.DeadRecord) error {
	p := store.PayoutSaveParams{DeadLetters: bus.DeadLetters(l.position.ID(), dead), Offsets: l.nextOffsets(records), Now: time.Now()}
	if _, err := l.rows.PayoutSave(ctx, p); err != nil {
		return err
	}
	bus.PublishDead(ctx, l.topic.Publisher, l.metrics, l.log, dead)
	return nil
}

// settleAll settles the records of one template. stored reports whether the offsets
// were stored in the same transaction; that requires a list of at most batchMax without
// dead records. never are the records with a ticket that no gate gave.
func (l *IssueListener) settleAll(ctx context.Context, id reward.TemplateID, list []issueRecord, offsets []store.Offset) (
	stored bool, never []bus.DeadRecord, err error,
) {
	for batch := range slices.Chunk(list, batchMax) {
		t, err := l.templates.Read(ctx, id)
		if err == nil {
			err = checkArchived(t)
		}
		if err != nil {
			return false, nil, err
		}
		settled, dead, err := l.settle(ctx, t, batch, offsets)
		if err != nil {
			return false, nil, err
		}
		stored, never = settled, append(never, dead...)
	}
	return stored && offsets != nil && len(never) == 0, never, nil
}

const (
	// externalConcurrency limits the concurrent requests for external records.
	externalConcurrency = 64
	// externalTimeout ends the wait for the result of one of them.
	externalTimeout = 300 * time.Millisecond
	// republishInterval precedes the publishing of records without a result.
	republishInterval = 200 * time.Millisecond
)

// requestExternal requests coupons for the users of external records, and
// discards the results. Once one record gets no result, it and the remaining ones
// are published again, to be read later. This loop must not wait for a gate: a gate
// that is being loaded waits until the records before its generation are consumed.
func (l *IssueListener) requestExternal(ctx context.Context, list []issueRecord) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex // protects again
		again []bus.Record
		slots = make(chan struct{}, externalConcurrency)
	)
	// later keeps a record for publishing if it got no result, or if an earlier one
	// got none. It reports whether it did.
	later := func(r issueRecord, noResult bool) bool {
		mu.Lock()
		defer mu.Unlock()
		if !noResult && len(again) == 0 {
			return false
		}
		again = append(again, bus.Record{Topic: r.Topic, Key: r.Key, Value: r.Value})
		return true
	}
	for _, r := range list {
		if !r.external() {
			continue
		}
		slots <- struct{}{}
		if later(r, false) {
			<-slots
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			request, cancel := context.WithTimeout(ctx, externalTimeout)
			defer cancel()
			_, err := l.intake.Request(request, IssueCommand{TemplateID: r.event.TemplateID, UserID: r.event.UserID})
			if reward.HasCode(err, reward.CodeUnavailable) {
				later(r, true)
			}
		})
	}
	wg.Wait()
	if len(again) == 0 {
		return nil
	}
	service.Sleep(ctx, republishInterval)
	return l.topic.Publisher.Publish(ctx, again)
}

// settle settles records in one transaction. It reports whether there was anything
// to settle, and returns the records with a ticket that no gate gave.
func (l *IssueListener) settle(ctx context.Context, t *reward.CouponTemplate, list []issueRecord, offsets []store.Offset) (bool, []bus.DeadRecord, error) {
	p := store.CouponSettleParams{TemplateID: t.ID, Known: t, Kind: rules.SettleListed, Offsets: offsets, Now: time.Now()}
	var records []bus.Record // of the requests
	for _, r := range list {
		if r.external() || t.Mode != reward.ModeKafka { // the mode was changed while the line was empty
			continue
		}
		p.Requests = append(p.Requests, newAsk(l.ids, t, r.event.UserID, r.event.Generation, r.event.Ticket))
		records = append(records, r.Record)
	}
	if len(p.Requests) == 0 {
		return false, nil, nil
	}
	began := time.Now()
	result, err := l.rows.CouponSettle(ctx, p)
	if err == nil {
		err = rules.CheckTemplateArchived(t.ID, result.Refused == rules.RefusedArchived)
	}
	if err != nil {
		return false, nil, err
	}
	var never []bus.DeadRecord
	with := gatekeeper.Extras{ServiceTime: l.average}
	if l.average == 0 {
		with.ServiceTime = l.measure(t.ID, len(p.Requests), began)
	}
	for i, r := range result.Results {
		request := p.Requests[i]
		if r.Outcome == rules.RequestNeverGiven {
			never = append(never, bus.DeadRecord{
				Record: records[i], Reason: reward.CodeNeverGiven,
				Detail: fmt.Sprintf("no gate gave ticket %d of template %s: it is more than %d above the highest settled one", request.Ticket, t.ID, t.TotalQuantity),
			})
			continue
		}
		if request.Generation == result.Template.Generation {
			with.Done = append(with.Done, gate.Request{UserID: request.UserID, Ticket: request.Ticket, Generation: request.Generation})
		}
		switch r.Outcome {
		case rules.RequestIssued:
			l.metrics.CouponsIssued(t.ID, 1)
		case rules.RequestRejected:
			l.metrics.CouponRejected(t.ID, r.Reason)
		default:
			continue
		}
		with.Outcomes = append(with.Outcomes, gate.Outcome{UserID: request.UserID, Ticket: request.Ticket, CouponID: r.Coupon.ID, Reason: r.Reason})
	}
	l.applier.ApplyBestEffort(ctx, t.ID, &result.CouponChange, with)
	l.settled(t.ID)
	return true, never, nil
}

const (
	// pacesMax limits the templates whose pace is remembered; at the limit all of them
	// are forgotten.
	pacesMax = 10_000
	// recordGap is the longest time between two batches of records of one line. After a
	// longer one, nobody waited in between.
	recordGap = 100 * time.Millisecond
)

func (l *IssueListener) measure(id reward.TemplateID, requests int, began time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paces == nil || len(l.paces) >= pacesMax {
		l.paces = make(map[reward.TemplateID]*pace)
	}
	p := l.paces[id]
	if p == nil {
		p = &pace{}
		l.paces[id] = p
	}
	if began.Sub(p.ended) > recordGap {
		p.rest()
	}
	return p.settled(requests, began)
}
