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
	// CodeNotReplayable is of dead letters that could only fail in the same way.
	CodeNotReplayable = "NOT_REPLAYABLE"
	// CodeNotPublished says that Kafka did not take what a replay writes.
	CodeNotPublished = "NOT_PUBLISHED"
	// CodePartlyDone is of calls that did a part of their work and can be
	// repeated.
	CodePartlyDone = "PARTLY_DONE"
)

// letterBatch is how many dead letters, with their bytes, are held at a time.
const letterBatch = 100

// letterRows is what dead letters need of the store.
type letterRows interface {
	store.DeadLetters
	PayoutHeads(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error)
	PayoutRetry(ctx context.Context, p store.PayoutRetryParams) (int, error)
}

// DeadLettersConfig is what DeadLetters needs.
type DeadLettersConfig struct {
	Rows letterRows
	// Publisher writes Kafka records again.
	Publisher bus.Publisher
	// Hint is told when a payout waits again.
	Hint func(reward.PromotionID)
	Log  obs.Log
}

// DeadLetters is what people do with messages that could not be read or
// processed. What is OPEN is replayed or discarded; both are for good.
//
// Replaying a Kafka record publishes its key and value again, to the topic it
// came from, and then notes that. Whoever dies in between leaves it OPEN, and
// replaying it once more publishes it twice: its target is known then, so the
// second one is a duplicate and pays nothing. Replaying a stream entry that was
// POISON requeues its payout, once that is FAILED.
type DeadLetters struct {
	cfg DeadLettersConfig
	log obs.Log
}

// NewDeadLetters makes DeadLetters.
func NewDeadLetters(cfg DeadLettersConfig) *DeadLetters {
	return &DeadLetters{cfg: cfg, log: cfg.Log.For(obs.Engine)}
}

// List pages by descending id.
func (d *DeadLetters) List(ctx context.Context, p store.DeadLetterListParams) ([]reward.DeadLetter, error) {
	return d.cfg.Rows.DeadLetterList(ctx, p)
}

// Get returns one dead letter.
func (d *DeadLetters) Get(ctx context.Context, id int64) (reward.DeadLetter, error) {
	return d.cfg.Rows.DeadLetterGet(ctx, id)
}

// Replay lets an OPEN dead letter be processed once more; CodeNotReplayable when
// that could only fail again, CodeIllegalState when it, or its payout, is in
// another state.
func (d *DeadLetters) Replay(ctx context.Context, id int64, by string) (reward.DeadLetter, error) {
	l, err := d.open(ctx, id)
	if err != nil {
		return reward.DeadLetter{}, err
	}
	if isEntry(l) {
		err = d.requeue(ctx, l)
	} else if err = checkTopic(l); err == nil {
		err = d.publish(ctx, []reward.DeadLetter{l})
	}
	if err != nil {
		return reward.DeadLetter{}, err
	}
	return d.settleOne(ctx, id, reward.DeadLetterReplayed, by)
}

// Discard says that nothing more will be done about an OPEN dead letter. Its
// bytes are kept.
func (d *DeadLetters) Discard(ctx context.Context, id int64, by string) (reward.DeadLetter, error) {
	if _, err := d.open(ctx, id); err != nil {
		return reward.DeadLetter{}, err
	}
	return d.settleOne(ctx, id, reward.DeadLetterDiscarded, by)
}

// LetterSelection names OPEN dead letters: these ids, or those of a source, a
// reason or both, or all there are.
type LetterSelection struct {
	IDs            []int64 // at most store.BatchMax
	Source, Reason string
	All            bool
}

// Check returns every field that is wrong.
func (s LetterSelection) Check() []reward.FieldError {
	filter := s.Source != "" || s.Reason != ""
	var ways int
	for _, way := range []bool{len(s.IDs) > 0, filter, s.All} {
		if way {
			ways++
		}
	}
	switch {
	case ways == 0:
		return []reward.FieldError{{Field: "all", Detail: "must be true where neither ids nor source or reason narrow it down"}}
	case ways > 1:
		return []reward.FieldError{{Field: "all", Detail: "ids, a filter (source, reason) and all exclude each other; give one of them"}}
	case len(s.IDs) > store.BatchMax:
		return []reward.FieldError{{Field: "ids", Detail: fmt.Sprintf("must be at most %d, not %d", store.BatchMax, len(s.IDs))}}
	}
	return nil
}

// LettersResult says what became of a selection.
type LettersResult struct {
	Count int // replayed or discarded by this call
	// Skipped ones are not there, are not OPEN any more, or cannot be replayed.
	Skipped int
}

// ReplayMany replays a selection, batch by batch. Those that come in meanwhile
// are left alone, so it comes to an end. After an error a part of it is done,
// which the error tells; repeating it goes on.
func (d *DeadLetters) ReplayMany(ctx context.Context, s LetterSelection, by string) (LettersResult, error) {
	return d.many(ctx, s, "replayed", func(letters []reward.DeadLetter) (int, error) { return d.replayBatch(ctx, letters, by) })
}

// DiscardMany discards a selection, like ReplayMany.
func (d *DeadLetters) DiscardMany(ctx context.Context, s LetterSelection, by string) (LettersResult, error) {
	return d.many(ctx, s, "discarded", func(letters []reward.DeadLetter) (int, error) {
		return d.settle(ctx, letters, reward.DeadLetterDiscarded, by)
	})
}

// many walks over the OPEN dead letters of a selection; do says how many of a
// batch it has settled.
func (d *DeadLetters) many(ctx context.Context, s LetterSelection, done string, do func([]reward.DeadLetter) (int, error)) (LettersResult, error) {
	if wrong := s.Check(); len(wrong) > 0 {
		return LettersResult{}, &reward.Error{Kind: reward.KindInvalid, Code: reward.CodeInvalid, Detail: wrong[0].Detail, Fields: wrong}
	}
	var out LettersResult
	batch := func(letters []reward.DeadLetter, missing int) error {
		n, err := do(letters)
		out.Count += n
		if err != nil {
			return partly(err, out.Count, done)
		}
		out.Skipped += missing + len(letters) - n
		return nil
	}
	if len(s.IDs) > 0 {
		ids := slices.Compact(slices.Sorted(slices.Values(s.IDs)))
		for chunk := range slices.Chunk(ids, letterBatch) {
			letters, err := d.read(ctx, chunk)
			if err != nil {
				return out, partly(err, out.Count, done)
			}
			if err := batch(letters, len(chunk)-len(letters)); err != nil {
				return out, err
			}
		}
		return out, nil
	}
	p := store.DeadLetterListParams{Limit: letterBatch, Source: s.Source, Reason: s.Reason, Status: reward.DeadLetterOpen}
	for {
		letters, err := d.cfg.Rows.DeadLetterList(ctx, p)
		if err != nil {
			return out, partly(err, out.Count, done)
		}
		if len(letters) == 0 {
			return out, nil
		}
		p.Before = letters[len(letters)-1].ID
		slices.SortFunc(letters, func(a, b reward.DeadLetter) int { return cmp.Compare(a.ID, b.ID) })
		if err := batch(letters, 0); err != nil {
			return out, err
		}
	}
}

// partly says how far a call came that failed in the middle.
func partly(err error, count int, done string) error {
	if count == 0 {
		return err
	}
	return &reward.Error{
		Kind: reward.KindUnavailable, Code: CodePartlyDone,
		Detail: fmt.Sprintf("%d dead letters were %s, then something failed; call it again to go on", count, done), Err: err,
	}
}

// read returns those of ids that are OPEN.
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

// replayBatch replays what can be replayed and returns how many it has settled,
// also when it fails in the middle.
func (d *DeadLetters) replayBatch(ctx context.Context, letters []reward.DeadLetter, by string) (int, error) {
	var records, done []reward.DeadLetter
	var failed error
	for _, l := range letters {
		if !isEntry(l) {
			if checkTopic(l) == nil {
				records = append(records, l)
			}
			continue
		}
		err := d.requeue(ctx, l)
		if err == nil {
			done = append(done, l)
		} else if kind := reward.KindOf(err); kind != reward.KindConflict && kind != reward.KindNotFound {
			failed = err
			break
		}
	}
	if failed == nil && len(records) > 0 {
		if failed = d.publish(ctx, records); failed == nil {
			done = append(done, records...)
		}
	}
	n, err := d.settle(ctx, done, reward.DeadLetterReplayed, by)
	return n, cmp.Or(failed, err)
}

// open reads a dead letter that must be OPEN.
func (d *DeadLetters) open(ctx context.Context, id int64) (reward.DeadLetter, error) {
	l, err := d.cfg.Rows.DeadLetterGet(ctx, id)
	if err == nil && l.Status != reward.DeadLetterOpen {
		err = settledAlready(l)
	}
	return l, err
}

func settledAlready(l reward.DeadLetter) error {
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"dead letter %d was %s by %s at %s; only an OPEN one can be replayed or discarded",
		l.ID, strings.ToLower(string(l.Status)), reward.Quote(l.SettledBy), l.SettledAt.UTC().Format(time.RFC3339))
}

// publish writes Kafka records as they came.
func (d *DeadLetters) publish(ctx context.Context, letters []reward.DeadLetter) error {
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
			Detail: fmt.Sprintf("Kafka did not take %d records; their dead letters stay OPEN, try again", len(records)), Err: err,
		}
	}
	return nil
}

// checkTopic refuses what did not come from a topic of ours.
func checkTopic(l reward.DeadLetter) error {
	if slices.Contains(bus.Topics, l.Source) {
		return nil
	}
	return reward.NewError(reward.KindConflict, CodeNotReplayable,
		"dead letter %d came from %s, which nobody here reads any more; discard it", l.ID, reward.Quote(l.Source))
}

// isEntry tells a stream entry from a Kafka record.
func isEntry(l reward.DeadLetter) bool { return queue.IsStreamName(l.Source) }

// requeue returns the payout of a POISON entry to READY.
func (d *DeadLetters) requeue(ctx context.Context, l reward.DeadLetter) error {
	if l.Reason != reward.CodePoison {
		return reward.NewError(reward.KindConflict, CodeNotReplayable,
			"dead letter %d is a stream entry that is %s: its payout, if there is one, was dispatched anew without it, so there is nothing to replay; discard it", l.ID, l.Reason)
	}
	id, err := poisoned(l)
	if err != nil {
		return reward.NewError(reward.KindConflict, CodeNotReplayable, "dead letter %d names no payout (%v); discard it", l.ID, err)
	}
	rows, err := d.cfg.Rows.PayoutHeads(ctx, []store.PayoutID{id})
	switch {
	case err != nil:
		return err
	case len(rows) == 0:
		return reward.NewError(reward.KindConflict, CodeNotReplayable,
			"the payout of dead letter %d, target %s of promotion %s, is not there any more; discard it", l.ID, id.TargetID, id.PromotionID)
	case rows[0].State != reward.Failed:
		return notFailed(l, rows[0])
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

func notFailed(l reward.DeadLetter, p reward.Payout) error {
	advice := "it needs no replay: discard the dead letter"
	if p.State == reward.Unknown {
		advice = "it is looked up until it is known; replay the dead letter when it is FAILED, or resolve the payout"
	}
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"the payout of dead letter %d, target %s of promotion %s, is %s, not FAILED: %s", l.ID, p.TargetID, p.PromotionID, p.State, advice)
}

// poisoned names the payout of a stream entry.
func poisoned(l reward.DeadLetter) (store.PayoutID, error) {
	stream, err := queue.ParseStreamName(l.Source)
	if err != nil {
		return store.PayoutID{}, err
	}
	m, err := reward.ParsePublishMessage(stream.Type, l.Value)
	return store.PayoutID{PromotionID: stream.PromotionID, TargetID: m.TargetID}, err
}

// settle notes what has become of dead letters and returns how many this call
// has settled.
func (d *DeadLetters) settle(ctx context.Context, letters []reward.DeadLetter, to reward.DeadLetterStatus, by string) (int, error) {
	if len(letters) == 0 {
		return 0, nil
	}
	ids := make([]int64, len(letters))
	for i, l := range letters {
		ids[i] = l.ID
	}
	settled, err := d.cfg.Rows.DeadLetterSettle(ctx, ids, to, by, time.Now())
	if len(settled) > 0 {
		d.log.Info("dead letters closed", "count", len(settled), "status", to, "actor", by)
	}
	return len(settled), err
}

// settleOne is settle for one, which must still be OPEN.
func (d *DeadLetters) settleOne(ctx context.Context, id int64, to reward.DeadLetterStatus, by string) (reward.DeadLetter, error) {
	n, err := d.settle(ctx, []reward.DeadLetter{{ID: id}}, to, by)
	if err != nil {
		return reward.DeadLetter{}, err
	}
	l, err := d.cfg.Rows.DeadLetterGet(ctx, id)
	if err == nil && n == 0 {
		err = settledAlready(l) // somebody was quicker
	}
	return l, err
}
