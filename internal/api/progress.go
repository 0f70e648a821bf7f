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
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// progressEvery is how often promotions that move are read, and the least
	// between two events of progress to one reader. It is above a quarter of a
	// second, so that no second sees more than four even when a network holds
	// one of them up.
	progressEvery = 275 * time.Millisecond
	// progressSlowest is how often those are read that do not move.
	progressSlowest = time.Second
	// progressGather is how long those who come at about the same time are waited
	// for, so that one read serves them all.
	progressGather = 10 * time.Millisecond
	// progressTimeout bounds one read.
	progressTimeout = 3 * time.Second
	// progressPatience is how long readers are held who cannot be told anything
	// because reads fail.
	progressPatience = 10 * time.Second
	// progressRate bounds the events that an instance sends a second: with more
	// readers each hears less often, down to progressSlowest.
	progressRate = 25_000
)

// progressHub tells those who watch promotions how these come on: all of an
// instance's watchers with one reader, which lives while there are any.
//
// What a watcher hears first was read after it came, so nobody is told what was
// so before a change that he has made himself. Afterwards its mailbox holds the
// latest view only: who is slow misses steps, and holds nobody up.
type progressHub struct {
	read func(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error)
	show func(v store.PromotionView) *Promotion
	log  obs.Log
	wake chan struct{} // holds one when somebody has come, or the last one has gone

	mu       sync.Mutex // protects what follows, and topics and watchers
	topics   map[reward.PromotionID]*progressTopic
	watchers int    // of all topics
	round    uint64 // of the latest reads
	reading  bool   // the reader lives
	// ctx is that of reads, which all watchers share; it ends with the last one.
	ctx    context.Context
	cancel context.CancelFunc
}

// progressTopic is one promotion and who watches it.
type progressTopic struct {
	watchers map[*progressWatcher]bool
	fresh    bool           // somebody has come since the latest read began
	latest   *progressFrame // nil before the first read
	heard    time.Time      // when it was last read, or first watched
	stride   int            // every so many rounds it is read
	rest     int            // rounds until then
}

// progressWatcher gets the news of one promotion.
type progressWatcher struct {
	id    reward.PromotionID
	since uint64 // the round in which it came; reads of later ones count
	told  bool
	news  chan progressNews // holds the latest only; written by the hub's reader
	first *progressFrame    // what its stream begins with; not the hub's affair
}

// progressNews is a view, or why there will be none any more.
type progressNews struct {
	*progressFrame
	err error
}

// progressFrame is a view as it is sent to all who watch.
type progressFrame struct {
	id     string // of the event: whoever has seen it has seen this view
	status reward.PromotionStatus
	done   bool // nothing more will come
	// The event as it is sent, by what its reader has seen before: another
	// status, or only other counts. Of what is done there is one.
	state, progress []byte
}

func newProgressHub(a *API) *progressHub {
	return &progressHub{
		read: func(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error) {
			return a.cfg.Rows.PromotionViews(ctx, ids)
		},
		show: a.promotionOf, log: a.log,
		wake: make(chan struct{}, 1), topics: make(map[reward.PromotionID]*progressTopic),
	}
}

// watch begins to watch a promotion; leave ends it.
func (h *progressHub) watch(id reward.PromotionID) *progressWatcher {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) == 0 {
		h.ctx, h.cancel = context.WithCancel(context.Background())
	}
	t := h.topics[id]
	if t == nil {
		t = &progressTopic{watchers: make(map[*progressWatcher]bool), heard: time.Now()}
		h.topics[id] = t
	}
	w := &progressWatcher{id: id, since: h.round, news: make(chan progressNews, 1)}
	t.watchers[w], t.fresh = true, true
	h.watchers++
	if !h.reading {
		h.reading = true
		go h.run()
	}
	h.hint()
	return w
}

// leave ends the watching. It may be called twice.
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
		h.hint()
	}
}

func (h *progressHub) hint() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run reads until nobody watches: all promotions every so often, and in between
// those that somebody has begun to watch.
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
		every := h.everyLocked()
		all := time.Since(regular) >= every
		if all {
			regular = time.Now()
		}
		ids := h.dueLocked(all)
		ctx, round := h.ctx, h.round
		h.mu.Unlock()
		for chunk := range slices.Chunk(ids, store.BatchMax) {
			err := h.look(ctx, round, chunk, int(progressSlowest/every))
			if ctx.Err() != nil {
				break // nobody waits for it any more
			}
			if (err != nil) != failed {
				failed = err != nil
				h.report(err)
			}
		}
		h.rest(regular.Add(every))
	}
}

// rest waits for the next round, or until somebody comes.
func (h *progressHub) rest(until time.Time) {
	time.Sleep(progressGather)
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-h.wake:
	case <-timer.C:
	}
}

func (h *progressHub) report(err error) {
	if err != nil {
		h.log.Warn(obs.Unavailable, err, "events", "promotions")
	} else {
		h.log.Info(obs.Recovered, "events", "promotions")
	}
}

// everyLocked is how long a round lasts: the more watch, the longer.
func (h *progressHub) everyLocked() time.Duration {
	return min(max(time.Duration(h.watchers)*time.Second/progressRate, progressEvery), progressSlowest)
}

// dueLocked begins a round and returns what is to be read in it.
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

// look reads promotions and tells their watchers. longest is the longest stride
// of what does not move.
func (h *progressHub) look(ctx context.Context, round uint64, ids []reward.PromotionID, longest int) error {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	views, err := h.read(ctx, ids)
	if err != nil && reward.KindOf(err) == reward.KindInternal {
		err = &reward.Error{
			Kind: reward.KindUnavailable, Code: reward.CodeUnavailable, Detail: "promotions cannot be read now; connect again", Err: err,
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
		case t == nil: // all have left meanwhile
		case err != nil:
			t.rest = longest
			h.failLocked(t, round, err)
		case f == nil:
			h.endLocked(t, round, reward.NewError(reward.KindNotFound, reward.CodeNotFound, "promotion %s is not known", id))
		default:
			t.tell(f, round, longest)
		}
	}
	return err
}

// tell passes a view on to those who have not seen it.
func (t *progressTopic) tell(f *progressFrame, round uint64, longest int) {
	moved := t.latest == nil || t.latest.id != f.id
	t.latest, t.heard = f, time.Now()
	if t.stride++; moved {
		t.stride = 1
	}
	t.stride = min(t.stride, longest)
	t.rest = t.stride
	for w := range t.watchers {
		if w.since < round && (moved || !w.told) {
			w.told = true
			w.tell(progressNews{progressFrame: f})
		}
	}
}

// failLocked tells those who have heard nothing yet that a read has failed, and
// after a while the others as well.
func (h *progressHub) failLocked(t *progressTopic, round uint64, err error) {
	if time.Since(t.heard) >= progressPatience {
		h.endLocked(t, round, err)
		return
	}
	for w := range t.watchers {
		if w.since < round && !w.told {
			w.tell(progressNews{err: err})
			h.dropLocked(t, w)
		}
	}
}

// endLocked tells all who watch a promotion that nothing more will come.
func (h *progressHub) endLocked(t *progressTopic, round uint64, err error) {
	for w := range t.watchers {
		if w.since < round {
			w.tell(progressNews{err: err})
			h.dropLocked(t, w)
		}
	}
}

// tell puts news into the mailbox, in the place of older ones.
func (w *progressWatcher) tell(n progressNews) {
	select {
	case <-w.news:
	default:
	}
	w.news <- n
}

// frame makes of a view what is sent.
func (h *progressHub) frame(v store.PromotionView) *progressFrame {
	p := h.show(v)
	// The time left goes down by itself; only whether it is known is news.
	eta := p.ETASeconds
	if eta != nil {
		p.ETASeconds = new(int64)
	}
	sum := fnv.New64a()
	_, _ = sum.Write(web.EncodeEvent(p)) // a hash takes everything
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
