package payout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/tracing"
)

// PublishListener saves the records of one publish topic as rows. A record becomes
// a dead letter, with its bytes, if it cannot be parsed or if the database cannot
// store its data. It does not block other records.
type PublishListener struct {
	listener
	kind     kind
	producer *Producer
	position bus.LogPosition // of the log that the records come from
	known    map[reward.PromotionID]reward.PromotionType
}

// listener is what the listeners of all topics need. Each gets one batch at a time.
type listener struct {
	*shared
	logs      bus.Logs
	publisher bus.Publisher // for the .dlq topics
	log       obs.Log
}

const knownMax = 10_000 // promotions remembered by a listener

// newPublishListener returns the listener of a type's publish topic. In direct mode, the
// first record also starts a promotion that was registered by a record.
func newPublishListener(common listener, k kind, p *Producer) *PublishListener {
	return &PublishListener{listener: common, kind: k, producer: p, known: make(map[reward.PromotionID]reward.PromotionType)}
}

// Offsets returns the offset at which to continue in each partition: the one after
// the last record that was saved from the present log of the topic.
func (l *PublishListener) Offsets(ctx context.Context, topic string) (map[int32]int64, error) {
	return l.position.Start(ctx, l.logs, topic, l.rows.OffsetsGet)
}

// parsed is a record with its message.
type parsed[M any] struct {
	record  bus.Record
	message M
	trace   string // of its row
}

// parse parses records. Those that it cannot parse are dead.
func parse[M any](records []bus.Record, parseMessage func([]byte) (M, error)) (good []parsed[M], dead []bus.DeadRecord) {
	for _, r := range records {
		m, err := parseMessage(r.Value)
		if err != nil {
			dead = append(dead, bus.DeadRecord{Record: r, Reason: reward.CodeMalformed, Detail: err.Error()})
			continue
		}
		good = append(good, parsed[M]{record: r, message: m})
	}
	return good, dead
}

// mistyped returns the dead letter of a record whose promotion has another type.
func mistyped(r bus.Record, id reward.PromotionID, is, named reward.PromotionType) bus.DeadRecord {
	return bus.DeadRecord{
		Record: r, Reason: reward.CodeTypeMismatch, Detail: fmt.Sprintf("promotion %s is of type %s, the record of type %s", id, is, named),
	}
}

// published is a record of a publish topic.
type published = parsed[reward.PublishMessage]

// ProcessTopicMessages saves a batch of records. One transaction writes the rows, the
// dead letters and the next offsets; then entries are added to the streams. If records
// conflict with saved targets, the offsets follow in a second transaction with the dead
// letters of these records. After a crash in between, the records are read again.
func (l *PublishListener) ProcessTopicMessages(ctx context.Context, records []bus.Record) error {
	for chunk := range slices.Chunk(records, store.BatchMax) {
		if err := l.process(ctx, chunk); err != nil {
			return err
		}
	}
	l.cache.Hint()
	return nil
}

func (l *PublishListener) process(ctx context.Context, records []bus.Record) error {
	good, dead := parse(records, func(value []byte) (reward.PublishMessage, error) {
		return reward.ParsePublishMessage(l.kind.promotionType, value)
	})
	good, mismatched, err := l.register(ctx, good)
	if err != nil {
		return err
	}
	dead = append(dead, mismatched...)
	spans := l.trace(ctx, good, len(records))
	conflicts, err := l.save(ctx, good, dead, l.nextOffsets(records))
	spans.End(err)
	if err != nil {
		// The cause may be a promotion that was deleted after it was registered.
		clear(l.known)
		return err
	}
	bus.PublishDead(ctx, l.publisher, l.cfg.Metrics, l.log, append(dead, conflicts...))
	l.log.Debug("records saved", "topic", l.kind.publishTopic, "count", len(good), "dead", len(dead))
	return nil
}

// trace begins the spans of a batch, and sets the traces of the rows that the headers
// of their records name.
func (l *PublishListener) trace(ctx context.Context, good []published, records int) *tracing.Batch {
	if l.cfg.Tracer == nil {
		return nil
	}
	batch := l.cfg.Tracer.Batch(ctx, l.kind.publishTopic, records)
	for i := range good {
		var named []string
		for _, h := range good[i].record.Headers {
			if strings.EqualFold(h.Key, tracing.Header) {
				named = append(named, string(h.Value))
			}
		}
		good[i].trace = batch.Record(ctx, named...)
	}
	return batch
}

// register creates the promotions that do not exist yet. It returns the records
// whose promotion has this listener's type, and the others as dead letters.
func (l *PublishListener) register(ctx context.Context, good []published) ([]published, []bus.DeadRecord, error) {
	if len(l.known) > knownMax-store.BatchMax { // a batch has no more promotions than that
		clear(l.known)
	}
	var unknown []store.Registration
	asked := make(map[reward.PromotionID]bool)
	for _, g := range good {
		// A promotion of another type may have been deleted and created again.
		if id := g.message.PromotionID; l.known[id] != l.kind.promotionType && !asked[id] {
			asked[id] = true
			unknown = append(unknown, store.Registration{ID: id, Type: l.kind.promotionType})
		}
	}
	if len(unknown) > 0 {
		promotions, err := l.rows.PromotionRegister(ctx, unknown)
		if err != nil {
			return nil, nil, fmt.Errorf("register the promotions of %s: %w", l.kind.publishTopic, err)
		}
		if err := l.start(ctx, promotions); err != nil {
			return nil, nil, err
		}
		for _, p := range promotions {
			l.known[p.ID] = p.Type
		}
	}
	var (
		mine []published
		dead []bus.DeadRecord
	)
	for _, g := range good {
		if id := g.message.PromotionID; l.known[id] == l.kind.promotionType {
			mine = append(mine, g)
		} else {
			dead = append(dead, mistyped(g.record, id, l.known[id], l.kind.promotionType))
		}
	}
	return mine, dead, nil
}

// start, in direct mode, starts the DRAFT promotions that were registered by a record. A
// DRAFT from the API waits for an operator.
func (l *PublishListener) start(ctx context.Context, promotions []reward.Promotion) error {
	if !l.cfg.Direct {
		return nil
	}
	var begun []store.Registration
	for _, p := range promotions {
		if p.Status == reward.Draft && p.Registered && p.Type == l.kind.promotionType {
			begun = append(begun, store.Registration{ID: p.ID, Type: p.Type, Started: true})
		}
	}
	if len(begun) == 0 {
		return nil
	}
	if _, err := l.rows.PromotionRegister(ctx, begun); err != nil {
		return fmt.Errorf("start the promotions of %s: %w", l.kind.publishTopic, err)
	}
	l.cache.Hint()
	return nil
}

// save writes a batch. If the database finds data in it that it cannot store, save halves
// the batch until that record is alone, and makes it a dead letter. It writes the offsets
// with the last part: after a crash in between, the records are read again, which changes
// nothing. The dead letters of conflicts, and of targets of archived promotions, are
// stored with the offsets, or before them.
func (l *PublishListener) save(ctx context.Context, good []published, dead []bus.DeadRecord, offsets []store.Offset) (conflicts []bus.DeadRecord, err error) {
	log := l.position.ID()
	params := store.PayoutSaveParams{Offsets: offsets, DeadLetters: bus.DeadLetters(log, dead)}
	for _, g := range good {
		m := g.message
		params.Rows = append(params.Rows, store.NewPayout{
			PromotionID: m.PromotionID, TargetID: m.TargetID, SummaryID: m.SummaryID,
			UserID: m.UserID, Amount: m.Amount, VoucherCode: m.VoucherCode, Trace: g.trace,
		})
	}
	res, err := l.producer.Save(ctx, l.kind.promotionType, params)
	switch {
	case err == nil:
		for i, o := range res.Outcomes {
			m := good[i].message
			switch o {
			case store.Conflict:
				conflicts = append(conflicts, bus.DeadRecord{
					Record: good[i].record, Reason: reward.CodeConflict,
					Detail: fmt.Sprintf("target %s exists in promotion %s with another amount, user or voucher code", m.TargetID, m.PromotionID),
				})
			case store.Archived:
				conflicts = append(conflicts, bus.DeadRecord{
					Record: good[i].record, Reason: reward.CodeArchived,
					Detail: fmt.Sprintf("promotion %s is archived: its payouts are removed, so nobody knows whether target %s was paid, and it is not", m.PromotionID, m.TargetID),
				})
			}
		}
		if len(conflicts) == 0 {
			return nil, nil
		}
		_, err = l.rows.PayoutSave(ctx, store.PayoutSaveParams{Offsets: offsets, DeadLetters: bus.DeadLetters(log, conflicts)})
		if err != nil {
			return nil, fmt.Errorf("save dead letters of %s: %w", l.kind.publishTopic, err)
		}
		return conflicts, nil
	case reward.KindOf(err) != reward.KindInvalid:
		return nil, fmt.Errorf("save records of %s: %w", l.kind.publishTopic, err)
	case len(good) == 0:
		return nil, fmt.Errorf("save dead letters of %s: %w", l.kind.publishTopic, err)
	case len(good) == 1:
		refused, _ := errors.AsType[*reward.Error](err)
		dead = append(dead, bus.DeadRecord{Record: good[0].record, Reason: refused.Code, Detail: err.Error()})
		return l.save(ctx, nil, dead, offsets)
	}
	half := len(good) / 2
	first, err := l.save(ctx, good[:half], nil, nil)
	if err != nil {
		return nil, err
	}
	second, err := l.save(ctx, good[half:], dead, offsets)
	return append(first, second...), err
}

func (l *PublishListener) nextOffsets(records []bus.Record) []store.Offset {
	id, next := l.position.After(records)
	out := make([]store.Offset, 0, len(next))
	for p, n := range next {
		out = append(out, store.Offset{Topic: id, Partition: p, Next: n})
	}
	return out
}

// StartedListener registers and starts the promotions that the started topic
// announces. Every instance reads the whole topic, so that an instance that starts
// late misses no promotion.
type StartedListener struct{ listener }

// ProcessTopicMessages registers the promotions that records announce.
func (l *StartedListener) ProcessTopicMessages(ctx context.Context, records []bus.Record) error {
	good, dead := parse(records, reward.ParseStartedMessage)
	for chunk := range slices.Chunk(good, store.BatchMax) {
		rs := make([]store.Registration, len(chunk))
		for i, g := range chunk {
			rs[i] = store.Registration{ID: g.message.PromotionID, Type: g.message.PromotionType, Started: true, ExpectedCount: &g.message.TotalCount}
		}
		promotions, err := l.rows.PromotionRegister(ctx, rs)
		if err != nil {
			return fmt.Errorf("register started promotions: %w", err)
		}
		for i, p := range promotions {
			if p.Type != rs[i].Type {
				dead = append(dead, mistyped(chunk[i].record, p.ID, p.Type, rs[i].Type))
			}
		}
	}
	if err := l.bury(ctx, dead); err != nil {
		return err
	}
	l.log.Info("started events received", "topic", bus.TopicStarted, "count", len(records))
	l.cache.Hint()
	return nil
}

// RetryListener passes the records of one retry topic to a RetryProcessor. It
// commits the offsets before the retries are done: if a retry is lost, the feeder
// finds the RETRYING row.
type RetryListener struct {
	listener
	kind  kind
	retry *RetryProcessor
}

// ProcessTopicMessages passes on a batch of retries.
func (l *RetryListener) ProcessTopicMessages(ctx context.Context, records []bus.Record) error {
	good, dead := parse(records, reward.ParseRetryMessage)
	if err := l.bury(ctx, dead); err != nil {
		return err
	}
	l.retry.wait(l.kind.promotionType, good)
	return nil
}

// bury stores dead records of one topic as rows, and copies them to the topic for them.
// A repeat changes no row.
func (l *listener) bury(ctx context.Context, dead []bus.DeadRecord) error {
	if len(dead) == 0 {
		return nil
	}
	log, err := l.logs.LogID(ctx, dead[0].Topic)
	if err == nil {
		err = l.rows.DeadLetterAdd(ctx, bus.DeadLetters(log, dead))
	}
	if err != nil {
		return fmt.Errorf("store %d dead letters: %w", len(dead), err)
	}
	bus.PublishDead(ctx, l.publisher, l.cfg.Metrics, l.log, dead)
	return nil
}
