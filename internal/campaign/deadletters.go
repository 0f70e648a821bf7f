package campaign

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Codes of dead letters.
const (
	// CodeNotReplayable means that a replay could only fail in the same way.
	CodeNotReplayable = "NOT_REPLAYABLE"
	// CodeNotPublished means that Kafka did not accept the replayed records.
	CodeNotPublished = "NOT_PUBLISHED"
	// CodePartlyDone means that a call did a part of its work; it can be repeated.
	CodePartlyDone = "PARTLY_DONE"
)

// letterBatch is the number of dead letters, with their bytes, held at a time.
const letterBatch = 100

type letterRows interface {
	DeadLetterGet(ctx context.Context, id int64) (reward.DeadLetter, error)
	DeadLetterList(ctx context.Context, p store.DeadLetterListParams) ([]reward.DeadLetter, error)
	DeadLetterClose(ctx context.Context, ids []int64, to reward.DeadLetterStatus, by string, now time.Time) ([]int64, error)
	PayoutGetMany(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error)
	PayoutRetry(ctx context.Context, p store.PayoutRetryParams) (int, error)
	PromotionAuthorAdd(ctx context.Context, id reward.PromotionID, author string) error
}

// DeadLettersConfig configures DeadLetters.
type DeadLettersConfig struct {
	Rows letterRows
	// Publisher publishes replayed Kafka records.
	Publisher bus.Publisher
	// Hint is called with the promotion of a payout that is READY again.
	Hint func(reward.PromotionID)
	Log  obs.Log
}

// DeadLetters replays and discards messages that could not be parsed or processed. It
// is safe for concurrent use.
//
// A Kafka record is published to its topic again, then recorded as replayed. After a
// crash in between it may be published twice; the second is a duplicate and pays
// nothing. The entry of a poison payout returns the payout to READY once it is FAILED.
type DeadLetters struct {
	cfg DeadLettersConfig
	log obs.Log
}

// NewDeadLetters returns DeadLetters with the given configuration.
func NewDeadLetters(cfg DeadLettersConfig) *DeadLetters {
	return &DeadLetters{cfg: cfg, log: cfg.Log.For(obs.Engine)}
}

// Close replays or discards an OPEN dead letter. A discarded one retains its bytes. It
// fails with CodeNotReplayable if a replay could only fail again, and with
// CodeIllegalState if the dead letter or its payout is in the wrong state.
func (d *DeadLetters) Close(ctx context.Context, id int64, to reward.DeadLetterStatus, by string) (reward.DeadLetter, error) {
	l, err := d.cfg.Rows.DeadLetterGet(ctx, id)
	if err != nil {
		return reward.DeadLetter{}, err
	}
	if l.Status == reward.DeadLetterOpen {
		closed, refused, err := d.closeBatch(ctx, []reward.DeadLetter{l}, to, by)
		if err := cmp.Or(err, refused); err != nil {
			return reward.DeadLetter{}, err
		}
		if l, err = d.cfg.Rows.DeadLetterGet(ctx, id); err != nil || closed == 1 {
			return l, err
		}
		// Another call closed it first.
	}
	return l, reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"dead letter %d was %s by %s at %s; only an OPEN one can be replayed or discarded",
		l.ID, strings.ToLower(string(l.Status)), reward.Quote(l.SettledBy), l.SettledAt.UTC().Format(time.RFC3339))
}

// DeadLetterSelection selects OPEN dead letters: by id, by source and reason, or all.
type DeadLetterSelection struct {
	IDs            []int64 // at most store.BatchMax
	Source, Reason string
	All            bool
}

// Check returns every field that is invalid.
func (s DeadLetterSelection) Check() []reward.FieldError {
	filter := s.Source != "" || s.Reason != ""
	var ways int
	for _, way := range []bool{len(s.IDs) > 0, filter, s.All} {
		if way {
			ways++
		}
	}
	switch {
	case ways == 0:
		return []reward.FieldError{{Field: "all", Detail: "must be true if ids, source and reason are empty"}}
	case ways > 1:
		return []reward.FieldError{{Field: "all", Detail: "ids, a filter (source, reason) and all exclude each other; give one of them"}}
	case len(s.IDs) > store.BatchMax:
		return []reward.FieldError{{Field: "ids", Detail: fmt.Sprintf("must be at most %d, not %d", store.BatchMax, len(s.IDs))}}
	}
	return nil
}

// LettersResult is the result for a selection.
type LettersResult struct {
	Count int // replayed or discarded by this call
	// Skipped counts those that do not exist, are not OPEN, or cannot be replayed.
	Skipped int
}

// CloseMany replays or discards a selection, without dead letters that arrive
// meanwhile. After an error, which says how much is done, a repeated call continues.
func (d *DeadLetters) CloseMany(ctx context.Context, s DeadLetterSelection, to reward.DeadLetterStatus, by string) (LettersResult, error) {
	if wrong := s.Check(); len(wrong) > 0 {
		return LettersResult{}, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "%s", wrong[0].Detail).With(wrong...)
	}
	count, selected := 0, 0
	closeRead := func(letters []reward.DeadLetter, err error) error {
		if err == nil {
			var n int
			n, _, err = d.closeBatch(ctx, letters, to, by)
			count += n
		}
		if err == nil || count == 0 {
			return err
		}
		return &reward.Error{
			Kind: reward.KindUnavailable, Code: CodePartlyDone,
			Detail: fmt.Sprintf("%d dead letters were %s before an error; call it again to continue", count, strings.ToLower(string(to))), Err: err,
		}
	}
	ids := slices.Compact(slices.Sorted(slices.Values(s.IDs)))
	for chunk := range slices.Chunk(ids, letterBatch) {
		selected += len(chunk)
		if err := closeRead(d.read(ctx, chunk)); err != nil {
			return LettersResult{Count: count}, err
		}
	}
	p := store.DeadLetterListParams{Limit: letterBatch, Source: s.Source, Reason: s.Reason, Status: reward.DeadLetterOpen}
	for len(ids) == 0 { // the filter selects
		letters, err := d.cfg.Rows.DeadLetterList(ctx, p)
		if err == nil && len(letters) == 0 {
			break
		}
		selected += len(letters)
		slices.Reverse(letters) // the oldest first
		if err := closeRead(letters, err); err != nil {
			return LettersResult{Count: count}, err
		}
		p.Before = letters[0].ID
	}
	return LettersResult{Count: count, Skipped: selected - count}, nil
}

// read returns the OPEN dead letters among ids.
func (d *DeadLetters) read(ctx context.Context, ids []int64) ([]reward.DeadLetter, error) {
	var letters []reward.DeadLetter
	for _, id := range ids {
		l, err := d.cfg.Rows.DeadLetterGet(ctx, id)
		switch {
		case reward.HasCode(err, reward.CodeDeadLetterNotFound):
		case err != nil:
			return nil, err
		case l.Status == reward.DeadLetterOpen:
			letters = append(letters, l)
		}
	}
	return letters, nil
}

// closeBatch closes dead letters, after a replay if to says so. It returns how many it
// closed, also after an error, and why it refused the last one that it did not replay.
func (d *DeadLetters) closeBatch(ctx context.Context, letters []reward.DeadLetter, to reward.DeadLetterStatus, by string) (closed int, refused, err error) {
	var failed error
	if to == reward.DeadLetterReplayed {
		letters, refused, failed = d.replay(ctx, letters, by)
	}
	if len(letters) == 0 {
		return 0, refused, failed
	}
	ids := make([]int64, len(letters))
	for i, l := range letters {
		ids[i] = l.ID
	}
	settled, err := d.cfg.Rows.DeadLetterClose(ctx, ids, to, by, time.Now())
	if len(settled) > 0 {
		d.log.Info("dead letters closed", "count", len(settled), "status", to, "actor", by)
	}
	return len(settled), refused, cmp.Or(failed, err)
}

// replay replays what can be replayed and returns it, also after an error.
func (d *DeadLetters) replay(ctx context.Context, letters []reward.DeadLetter, by string) (done []reward.DeadLetter, refused, err error) {
	var records []reward.DeadLetter
	for _, l := range letters {
		into := &records
		if queue.IsStreamName(l.Source) {
			into, err = &done, d.requeue(ctx, l, by)
		} else {
			err = checkReplay(l)
		}
		switch kind := reward.KindOf(err); {
		case err == nil:
			*into = append(*into, l)
		case kind == reward.KindConflict || kind == reward.KindNotFound:
			refused = err
		default:
			return done, refused, err
		}
	}
	if len(records) > 0 {
		if err := d.publish(ctx, records, by); err != nil {
			return done, refused, err
		}
	}
	return append(done, records...), refused, nil
}

// publishTypes are the types of the promotions whose targets a topic has.
var publishTypes = map[string]reward.PromotionType{bus.TopicPointPublish: reward.Point, bus.TopicVoucherPublish: reward.Voucher}

// publish publishes records as they were. A person who replays targets is their author.
func (d *DeadLetters) publish(ctx context.Context, letters []reward.DeadLetter, by string) error {
	authored := make(map[reward.PromotionID]bool)
	for _, l := range letters {
		// By the widest rule: an instance of another version may accept more than this one.
		m, err := reward.ParseEntry(publishTypes[l.Source], l.Value)
		if publishTypes[l.Source] == "" || err != nil || authored[m.PromotionID] {
			continue // it adds no target
		}
		authored[m.PromotionID] = true
		if err := d.cfg.Rows.PromotionAuthorAdd(ctx, m.PromotionID, by); err != nil {
			return err
		}
	}
	records := make([]bus.Record, len(letters))
	for i, l := range letters {
		records[i] = bus.Record{Topic: l.Source, Value: l.Value}
		if len(l.Key) > 0 {
			records[i].Key = l.Key
		}
	}
	if err := d.cfg.Publisher.Publish(ctx, records); err != nil {
		return &reward.Error{
			Kind: reward.KindUnavailable, Code: CodeNotPublished,
			Detail: fmt.Sprintf("Kafka did not accept %d records; their dead letters stay OPEN, try again", len(records)), Err: err,
		}
	}
	return nil
}

// checkReplay refuses a record that is not kept whole, or that no topic takes.
func checkReplay(l reward.DeadLetter) error {
	if l.ValueLength > int64(len(l.Value)) {
		return reward.NewError(reward.KindConflict, CodeNotReplayable,
			"of dead letter %d only the first %d of %d bytes are kept; publish the message again, or discard the dead letter", l.ID, len(l.Value), l.ValueLength)
	}
	if slices.Contains(bus.Topics, l.Source) {
		return nil
	}
	return reward.NewError(reward.KindConflict, CodeNotReplayable,
		"dead letter %d came from %s, which Largesse does not read; discard it", l.ID, reward.Quote(l.Source))
}

// requeue returns the payout of a POISON entry to READY.
func (d *DeadLetters) requeue(ctx context.Context, l reward.DeadLetter, by string) error {
	if l.Reason != reward.CodePoison {
		return reward.NewError(reward.KindConflict, CodeNotReplayable,
			"dead letter %d is a stream entry with the reason %s: its payout, if it exists, was dispatched again without it, so there is nothing to replay; discard it", l.ID, l.Reason)
	}
	stream, err := queue.ParseStreamName(l.Source)
	var m reward.PublishMessage
	if err == nil {
		m, err = reward.ParseEntry(stream.Type, l.Value)
	}
	if err != nil {
		return reward.NewError(reward.KindConflict, CodeNotReplayable, "dead letter %d names no payout (%v); discard it", l.ID, err)
	}
	id := store.PayoutID{PromotionID: stream.PromotionID, TargetID: m.TargetID}
	rows, err := d.cfg.Rows.PayoutGetMany(ctx, []store.PayoutID{id})
	switch {
	case err != nil:
		return err
	case len(rows) == 0:
		return reward.NewError(reward.KindConflict, CodeNotReplayable,
			"the payout of dead letter %d, target %s of promotion %s, does not exist any more; discard it", l.ID, id.TargetID, id.PromotionID)
	case rows[0].State != reward.Failed:
		return notFailed(l, rows[0])
	}
	if err := d.cfg.Rows.PromotionAuthorAdd(ctx, id.PromotionID, by); err != nil {
		return err
	}
	moved, err := d.cfg.Rows.PayoutRetry(ctx, store.PayoutRetryParams{
		PromotionID: id.PromotionID, Targets: []reward.TargetID{id.TargetID}, Now: time.Now(),
	})
	if err != nil || moved > 0 {
		d.cfg.Hint(id.PromotionID)
		return err
	}
	return notFailed(l, rows[0])
}

// notFailed says why a replay cannot return a payout to READY.
func notFailed(l reward.DeadLetter, p reward.Payout) error {
	advice := "it needs no replay: discard the dead letter"
	if p.State == reward.Unknown {
		advice = "it is looked up until it is settled; replay the dead letter when it is FAILED, or resolve the payout"
	}
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"the payout of dead letter %d, target %s of promotion %s, is %s, not FAILED: %s", l.ID, p.TargetID, p.PromotionID, p.State, advice)
}
