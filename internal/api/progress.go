package api

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// progressInterval separates two reads of a promotion that changes, and two
	// progress events to a client. It is above a quarter of a second, so that no
	// second has more than four events, even if the network delays one.
	progressInterval = 275 * time.Millisecond
	// progressIntervalMax separates two reads of a promotion that does not change.
	progressIntervalMax = time.Second
	// progressGatherTime is the time to wait for further watchers, so that one read
	// serves all of them.
	progressGatherTime = 10 * time.Millisecond
	// progressTimeout is the timeout of one read.
	progressTimeout = 3 * time.Second
	// progressFailTimeout is the time without a successful read after which streams
	// end.
	progressFailTimeout = 10 * time.Second
	// progressEventsMax limits the events per second of an instance. The more watchers,
	// the fewer events each gets, down to one per progressIntervalMax.
	progressEventsMax = 25_000
)

// progressHub sends updates of promotions to their watchers. One goroutine reads
// for all watchers of an instance. It runs while there are watchers.
//
// The first update of a watcher was read after the watch began, so callers see
// their own earlier changes. Afterwards a mailbox holds the latest view only: a
// slow watcher misses steps and delays nobody. A progressHub is safe for concurrent
// use.
type progressHub struct {
	read func(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error)
	show func(v store.PromotionView) *Promotion
	log  obs.Log
	hint service.Hint // given when a watcher comes, or the last one leaves

	mu       sync.Mutex // protects what follows, and topics and watchers
	topics   map[reward.PromotionID]*progressTopic
	watchers int    // in all topics
	round    uint64 // number of the latest round of reads
	reading  bool   // the goroutine runs
	// ctx is the context of reads. It ends when the last watcher leaves.
	ctx    context.Context
	cancel context.CancelFunc
}

// progressTopic is a promotion and its watchers.
type progressTopic struct {
	watchers map[*progressWatcher]bool
	fresh    bool           // a watcher came after the latest read began
	latest   *progressFrame // nil before the first read
	readAt   time.Time      // time of the last read, or of the first watch
	stride   int            // rounds between two reads
	rest     int            // rounds until the next read
}

// progressWatcher gets the updates of a promotion.
type progressWatcher struct {
	id      reward.PromotionID
	since   uint64 // round in which the watch began; only later reads count
	updated bool
	updates chan progressUpdate // holds the latest update; only the hub's goroutine writes it
	first   *progressFrame      // first event of the stream; the hub does not use it
}

// progressUpdate is a view, or the reason why there are no more.
type progressUpdate struct {
	*progressFrame
	err error
}

// progressFrame is a view as it is sent to all watchers.
type progressFrame struct {
	id     string // event ID; equal IDs mean equal views
	status reward.PromotionStatus
	done   bool // there are no more events
	// state is the event for clients that have seen another status, and progress
	// the one for the same status. They are equal if done.
	state, progress []byte
}

func newProgressHub(a *API) *progressHub {
	return &progressHub{
		read: func(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error) {
			return a.cfg.Rows.PromotionViews(store.ForViewer(ctx), ids)
		},
		show: a.promotionForAll, log: a.log,
		hint: service.NewHint(), topics: make(map[reward.PromotionID]*progressTopic),
	}
}

// watch starts to watch a promotion. leave ends it.
func (h *progressHub) watch(id reward.PromotionID) *progressWatcher {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) == 0 {
		h.ctx, h.cancel = context.WithCancel(context.Background())
	}
	t := h.topics[id]
	if t == nil {
		t = &progressTopic{watchers: make(map[*progressWatcher]bool), readAt: time.Now()}
		h.topics[id] = t
	}
	w := &progressWatcher{id: id, since: h.round, updates: make(chan progressUpdate, 1)}
	t.watchers[w], t.fresh = true, true
	h.watchers++
	if !h.reading {
		h.reading = true
		go h.run()
	}
	h.hint.Give()
	return w
}

// leave ends a watch. It may be called more than once.
func (h *progressHub) leave(w *progressWatcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[w.id]; t != nil && t.watchers[w] {
		h.dropLocked(t, w)
	}
}

func (h *progressHub) dropLocked(t *progressTopic, w *progressWatcher) {
	delete(t.watchers, w)
	h.watchers--
	if len(t.watchers) > 0 {
		return
	}
	delete(h.topics, w.id)
	if len(h.topics) == 0 {
		h.cancel()
		h.hint.Give()
	}
}

// run reads until there are no watchers: all promotions at regular intervals, and
// in between those with new watchers.
func (h *progressHub) run() {
	var regular time.Time // when all were last due
	failed := false
	for {
		h.mu.Lock()
		if len(h.topics) == 0 {
			h.reading = false
			h.mu.Unlock()
			return
		}
		interval := h.intervalLocked()
		all := time.Since(regular) >= interval
		if all {
			regular = time.Now()
		}
		ids := h.dueLocked(all)
		ctx, round := h.ctx, h.round
		h.mu.Unlock()
		for chunk := range slices.Chunk(ids, store.BatchMax) {
			err := h.readAndSend(ctx, round, chunk, int(progressIntervalMax/interval))
			if ctx.Err() != nil {
				break // there are no watchers any more
			}
			if (err != nil) != failed {
				failed = err != nil
				h.report(err)
			}
		}
		h.rest(regular.Add(interval))
	}
}

// rest waits for the next round, or for a new watcher.
func (h *progressHub) rest(until time.Time) {
	time.Sleep(progressGatherTime)
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-h.hint:
	case <-timer.C:
	}
}

func (h *progressHub) report(err error) {
	if err != nil {
		h.log.Warn("promotion updates unavailable", err)
	} else {
		h.log.Info("promotion updates available again")
	}
}

// intervalLocked returns the length of a round. It grows with the number of watchers.
func (h *progressHub) intervalLocked() time.Duration {
	return min(max(time.Duration(h.watchers)*time.Second/progressEventsMax, progressInterval), progressIntervalMax)
}

// dueLocked starts a round and returns the promotions to read in it.
func (h *progressHub) dueLocked(all bool) []reward.PromotionID {
	h.round++
	var ids []reward.PromotionID
	for id, t := range h.topics {
		if all {
			t.rest--
		}
		if t.fresh || all && t.rest <= 0 {
			t.fresh = false
			ids = append(ids, id)
		}
	}
	return ids
}

// readAndSend reads promotions and updates their watchers. longest is the maximum stride
// of promotions that do not change.
func (h *progressHub) readAndSend(ctx context.Context, round uint64, ids []reward.PromotionID, longest int) error {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	views, err := h.read(ctx, ids)
	if err != nil && reward.KindOf(err) == reward.KindInternal {
		err = &reward.Error{
			Kind: reward.KindUnavailable, Code: reward.CodeUnavailable, Detail: "reading promotions failed; connect again", Err: err,
		}
	}
	frames := make(map[reward.PromotionID]*progressFrame, len(views))
	for _, v := range views {
		frames[v.ID] = h.frame(v)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		t := h.topics[id]
		switch f := frames[id]; {
		case t == nil: // all watchers left in the meantime
		case err != nil:
			t.rest = longest
			h.failLocked(t, round, err)
		case f == nil:
			h.endLocked(t, round, reward.NewError(reward.KindNotFound, reward.CodeNotFound, "promotion %s does not exist", id))
		default:
			t.send(f, round, longest)
		}
	}
	return err
}

// send sends a view to the watchers that have not seen it.
func (t *progressTopic) send(f *progressFrame, round uint64, longest int) {
	moved := t.latest == nil || t.latest.id != f.id
	t.latest, t.readAt = f, time.Now()
	if t.stride++; moved {
		t.stride = 1
	}
	t.stride = min(t.stride, longest)
	t.rest = t.stride
	for w := range t.watchers {
		if w.since < round && (moved || !w.updated) {
			w.updated = true
			w.put(progressUpdate{progressFrame: f})
		}
	}
}

// failLocked ends the watches that have no update yet, because a read failed. After
// progressFailTimeout it ends the others too.
func (h *progressHub) failLocked(t *progressTopic, round uint64, err error) {
	if time.Since(t.readAt) >= progressFailTimeout {
		h.endLocked(t, round, err)
		return
	}
	for w := range t.watchers {
		if w.since < round && !w.updated {
			w.put(progressUpdate{err: err})
			h.dropLocked(t, w)
		}
	}
}

// endLocked ends all watches of a promotion.
func (h *progressHub) endLocked(t *progressTopic, round uint64, err error) {
	for w := range t.watchers {
		if w.since < round {
			w.put(progressUpdate{err: err})
			h.dropLocked(t, w)
		}
	}
}

// put puts an update into the mailbox. It replaces an older one.
func (w *progressWatcher) put(n progressUpdate) {
	select {
	case <-w.updates:
	default:
	}
	w.updates <- n
}

// frame encodes a view.
func (h *progressHub) frame(v store.PromotionView) *progressFrame {
	p := h.show(v)
	// The remaining time changes all the time. Only whether it is known counts.
	eta := p.ETASeconds
	if eta != nil {
		p.ETASeconds = new(int64)
	}
	sum := fnv.New64a()
	_, _ = sum.Write(web.EncodeEvent(p)) // writing to a hash never fails
	p.ETASeconds = eta
	f := &progressFrame{
		id: fmt.Sprintf("%s.%016x", v.Status, sum.Sum64()), status: v.Status,
		done: v.Status == reward.Completed || v.Status == reward.PromotionCancelled && !v.FinishedAt.IsZero(),
	}
	text := web.EncodeEvent(p)
	if f.done {
		f.state = web.EventText(eventDone, f.id, text)
		f.progress = f.state
	} else {
		f.state, f.progress = web.EventText(eventState, f.id, text), web.EventText(eventProgress, f.id, text)
	}
	return f
}
