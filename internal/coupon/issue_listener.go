package coupon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// Publisher writes to topics. [EventProviderService]
type Publisher interface {
	Publish(ctx context.Context, records []bus.Record) error
}

// Logs tells about the log behind a topic.
type TopicInspector interface {
	LogID(ctx context.Context, topic string) (string, error)
	// Ends returns the end offset of each partition.
	Ends(ctx context.Context, topic string) (map[int32]int64, error)
	// Positions returns where a group begins to read each partition of which it
	// has no offset elsewhere.
	Positions(ctx context.Context, group, topic string) (map[int32]int64, error)
}

// Records is the coupon-issue topic: where the requests of templates in KAFKA
// mode go, and how far they have been worked off.
type IssueTopic struct {
	rows      store.Store
	publisher Publisher
	inspector TopicInspector
}

// publish writes requests; a repeat is a repeat of the same ticket, which is
// settled once.
func (r *IssueTopic) publish(ctx context.Context, id reward.TemplateID, hand []gate.Request) error {
	records := make([]bus.Record, len(hand))
	for i, q := range hand {
		e := reward.CouponIssueEvent{
			TemplateID: id, UserID: q.UserID, Ticket: q.Ticket, Generation: q.Generation, RequestID: reward.RequestID(id, q.UserID),
		}
		records[i] = bus.Record{Topic: bus.TopicCouponIssue, Key: []byte(id.String()), Value: e.JSON()}
	}
	return r.publisher.Publish(ctx, records)
}

// ends returns where the log ends now.
func (r *IssueTopic) ends(ctx context.Context) (map[int32]int64, error) {
	return r.inspector.Ends(ctx, bus.TopicCouponIssue)
}

// passed says whether all records before the ends are settled.
func (r *IssueTopic) passed(ctx context.Context, ends map[int32]int64) (bool, error) {
	log, err := r.inspector.LogID(ctx, bus.TopicCouponIssue)
	if err != nil {
		return false, err
	}
	stored, err := r.rows.OffsetsGet(ctx, log)
	if err != nil {
		return false, err
	}
	var open []int32
	for partition, end := range ends {
		if at, known := stored[partition]; known && at < end {
			return false, nil
		} else if !known && end > 0 {
			open = append(open, partition)
		}
	}
	if len(open) == 0 {
		return true, nil
	}
	// Of these nothing was ever settled into these rows; what the listener will
	// not read again is passed.
	positions, err := r.inspector.Positions(ctx, bus.GroupCouponIssue, bus.TopicCouponIssue)
	if err != nil {
		return false, err
	}
	for _, partition := range open {
		if positions[partition] < ends[partition] {
			return false, nil
		}
	}
	return true, nil
}

// IssueListener settles the records of the coupon-issue topic, in as many
// transactions at once as the concurrency says. [coupon-issue consumer]
type IssueListener struct {
	rows        store.Store
	topic       *IssueTopic
	templates   *TemplateCache
	applier     *Applier
	intake      *Intake
	ids         *service.IDs
	concurrency int
	settled     func(id reward.TemplateID)
	average     time.Duration // per person, as it was set; 0 = it is measured
	metrics     *obs.Metrics
	log         obs.Log

	mu    sync.Mutex // protects logID
	logID string     // of the log that records come from, since the last assignment
}

// Offsets tells where to go on reading: behind what is settled, of this very
// log.
func (l *IssueListener) Offsets(ctx context.Context, topic string) (map[int32]int64, error) {
	id, err := l.topic.inspector.LogID(ctx, topic)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.logID = id
	l.mu.Unlock()
	return l.rows.OffsetsGet(ctx, id)
}

// issueRecord is a record that could be read.
type issueRecord struct {
	bus.Record
	event reward.CouponIssueEvent
}

// foreign says that it is no promise of a gate of ours, but asks for one.
func (r issueRecord) external() bool { return r.event.Generation == 0 }

// ProcessTopicMessages settles a batch of records, those of a template in one
// transaction after the other, and stores the offsets behind them when all are
// settled; a repeat meets the tickets that are settled already.
func (l *IssueListener) ProcessTopicMessages(ctx context.Context, records []bus.Record) error {
	byTemplate := make(map[reward.TemplateID][]issueRecord)
	var dead []bus.DeadRecord
	foreign := false // whether there is one among them
	for _, r := range records {
		event, err := reward.ParseCouponIssueEvent(r.Value)
		if err != nil {
			dead = append(dead, bus.DeadRecord{Record: r, Reason: reward.CodeMalformed, Detail: err.Error()})
			continue
		}
		one := issueRecord{r, event}
		foreign = foreign || one.external()
		byTemplate[event.TemplateID] = append(byTemplate[event.TemplateID], one)
	}
	if len(byTemplate) == 1 && len(dead) == 0 && len(records) <= batchMax && !foreign {
		// The common case: one transaction settles and stores.
		for id, list := range byTemplate {
			kept, err := l.settleAll(ctx, id, list, l.nextOffsets(records))
			if kept || err != nil && !reward.HasCode(err, reward.CodeTemplateNotFound) {
				return err
			}
		}
	}
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex // protects dead, errs, unknown
		errs    []error
		unknown []reward.TemplateID
		slots   = make(chan struct{}, l.concurrency)
	)
	for id, list := range byTemplate {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			_, err := l.settleAll(ctx, id, list, nil)
			mu.Lock()
			defer mu.Unlock()
			if reward.HasCode(err, reward.CodeTemplateNotFound) {
				unknown = append(unknown, id)
				for _, r := range list {
					dead = append(dead, bus.DeadRecord{Record: r.Record, Reason: reward.CodeTemplateNotFound, Detail: err.Error()})
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
	for _, id := range unknown {
		delete(byTemplate, id)
	}
	for _, list := range byTemplate {
		if err := l.requestExternal(ctx, list); err != nil {
			return err
		}
	}
	return l.saveOffsets(ctx, records, dead)
}

// next are the offsets behind records.
func (l *IssueListener) nextOffsets(records []bus.Record) []store.Offset {
	l.mu.Lock()
	log := l.logID
	l.mu.Unlock()
	next := make(map[int32]int64)
	for _, r := range records {
		next[r.Partition] = max(next[r.Partition], r.Offset+1)
	}
	var out []store.Offset
	for partition, offset := range next {
		out = append(out, store.Offset{Topic: log, Partition: partition, Next: offset})
	}
	return out
}

// store keeps the offsets and the dead letters in one transaction.
func (l *IssueListener) saveOffsets(ctx context.Context, records []bus.Record, dead []bus.DeadRecord) error {
	p := store.PayoutSaveParams{DeadLetters: bus.Letters(dead), Offsets: l.nextOffsets(records), Now: time.Now()}
	if _, err := l.rows.PayoutSave(ctx, p); err != nil {
		return err
	}
	bus.PublishDead(ctx, l.topic.publisher, l.log, dead)
	return nil
}

// settleAll settles the records of one template. kept says that the offsets, of
// a list that fits one transaction, were stored with them.
func (l *IssueListener) settleAll(ctx context.Context, id reward.TemplateID, list []issueRecord, offsets []store.Offset) (kept bool, err error) {
	for batch := range slices.Chunk(list, batchMax) {
		for try := 0; ; try++ {
			t, err := l.templates.read(ctx, id)
			if err != nil {
				return false, err
			}
			settled, err := l.settle(ctx, t, batch, offsets)
			if errors.Is(err, errEndsChanged) && try < requestTriesMax {
				continue
			}
			if err != nil {
				return false, err
			}
			kept = settled
			break
		}
	}
	return kept && offsets != nil, nil
}

const (
	// askersAtOnce bounds how many other systems' records are asked for at once.
	externalConcurrency = 64
	// foreignWait bounds the wait for the answer to one, foreignPause is before
	// those without an answer are published again.
	externalTimeout   = 300 * time.Millisecond
	republishInterval = 200 * time.Millisecond
)

// askFor asks for the users of other systems' records, which have no ticket, like
// anybody else asks. What they are told nobody hears. Once one is not answered,
// those that are left are published again, to be read later: a gate that is
// being loaded waits until the records before its generation have been passed,
// so nobody here may wait for a gate.
func (l *IssueListener) requestExternal(ctx context.Context, list []issueRecord) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex // protects again
		again []bus.Record
		slots = make(chan struct{}, externalConcurrency)
	)
	// later puts a record aside: because it was not answered, or, when that is not
	// known yet, if another was not.
	later := func(r issueRecord, unanswered bool) bool {
		mu.Lock()
		defer mu.Unlock()
		if !unanswered && len(again) == 0 {
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
			asking, cancel := context.WithTimeout(ctx, externalTimeout)
			defer cancel()
			_, err := l.intake.Request(asking, IssueCommand{TemplateID: r.event.TemplateID, UserID: r.event.UserID})
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
	return l.topic.publisher.Publish(ctx, again)
}

// errEnds says that the ends of a newer generation were noted meanwhile.
var errEndsChanged = errors.New("the ends of a newer generation were noted")

// settle settles in one transaction, if there is anything to settle; it says so.
func (l *IssueListener) settle(ctx context.Context, t *reward.CouponTemplate, list []issueRecord, offsets []store.Offset) (bool, error) {
	p := store.CouponSettleParams{TemplateID: t.ID, Kind: store.SettleListed, EndsGeneration: t.EndsGeneration, Offsets: offsets, Now: time.Now()}
	for _, r := range list {
		switch {
		case r.external(), t.Mode != reward.ModeKafka: // the mode was changed while nobody waited
			continue
		case r.event.Generation < t.EndsGeneration && r.Offset >= t.Ends[r.Partition]:
			continue // void: whoever still waits has a number of a newer generation
		}
		p.Asks = append(p.Asks, store.CouponAsk{
			UserID: r.event.UserID, Generation: r.event.Generation, Ticket: r.event.Ticket,
			CouponID: reward.CouponID(l.ids.Next()), Code: reward.NewCouponCode(),
		})
	}
	if len(p.Asks) == 0 {
		return false, nil
	}
	began := time.Now()
	result, err := l.rows.CouponSettle(ctx, p)
	if err != nil {
		return false, err
	}
	if result.Refused != store.NotRefused {
		return false, errEndsChanged
	}
	with := applyExtras{serviceTime: l.average}
	if l.average == 0 {
		with.serviceTime = max(time.Since(began)/time.Duration(len(p.Asks)), time.Microsecond)
	}
	for i, r := range result.Results {
		ask := p.Asks[i]
		if ask.Generation == result.Template.Generation {
			with.done = append(with.done, gate.SettledTicket{UserID: ask.UserID, Ticket: ask.Ticket})
		}
		switch r.Outcome {
		case store.OutcomeIssued:
			l.metrics.CouponsIssued(1)
		case store.OutcomeRejected:
			l.metrics.CouponsRejected(1)
		default:
			continue
		}
		with.outcomes = append(with.outcomes, gate.Outcome{UserID: ask.UserID, Ticket: ask.Ticket, CouponID: r.Coupon.ID, Reason: r.Reason})
	}
	l.applier.applyBestEffort(ctx, t.ID, &result.CouponChange, with)
	l.settled(t.ID)
	return true, nil
}
