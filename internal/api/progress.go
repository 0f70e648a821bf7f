package api

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// progressInterval separates two reads of a promotion that changes, and two
	// progress events to a client. It is above a quarter of a second, so that no
	// second has more than four events, even if the network delays one.
	// countersInterval is that of a template, above half a second.
	progressInterval = 275 * time.Millisecond
	countersInterval = 550 * time.Millisecond
	// progressIntervalMax separates two reads of something that does not change.
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

// progressHub sends updates of promotions, or of templates, to their watchers. One
// goroutine reads for all watchers of an instance. It runs while there are watchers.
//
// The first update of a watcher was read after the watch began, so callers see
// their own earlier changes. Afterwards a mailbox holds the latest view only: a
// slow watcher misses steps and delays nobody. A progressHub is safe for concurrent
// use.
type progressHub[ID comparable, V any] struct {
	progressSource[ID, V]
	log  obs.Log
	hint service.Hint // given when a watcher comes, or the last one leaves

	mu       sync.Mutex // protects what follows, and topics and watchers
	topics   map[ID]*progressTopic[ID]
	watchers int    // in all topics
	round    uint64 // number of the latest round of reads
	reading  bool   // the goroutine runs
	// ctx is the context of reads. It ends when the last watcher leaves.
	ctx    context.Context
	cancel context.CancelFunc
}

// progressSource is what a hub reads. Only the goroutine of the hub calls it.
type progressSource[ID comparable, V any] struct {
	what     string        // what it reads, for texts
	interval time.Duration // between two reads of something that changes
	// read returns the views of the IDs that exist.
	read    func(ctx context.Context, ids []ID) ([]V, error)
	idOf    func(v V) ID
	frame   func(v V) *progressFrame
	missing func(id ID) error
}

type progressTopic[ID comparable] struct {
	watchers map[*progressWatcher[ID]]bool
	fresh    bool           // a watcher came after the latest read began
	latest   *progressFrame // nil before the first read
	readAt   time.Time      // time of the last read, or of the first watch
	stride   int            // rounds between two reads
	rest     int            // rounds until the next read
}

// progressWatcher gets the updates of a promotion or template.
type progressWatcher[ID comparable] struct {
	id      ID
	since   uint64 // round in which the watch began; only later reads count
	updated bool
	updates chan progressUpdate // holds the latest update; only the hub's goroutine writes it
	first   *progressFrame      // first event of the stream; the hub does not use it
}

type progressUpdate struct {
	*progressFrame
	err error
}

// progressFrame is a view as it is sent to all watchers.
type progressFrame struct {
	id     string // event ID, which begins with the status; equal IDs mean equal views
	status string
	done   bool // there are no more events
	// state is the event for clients that have seen another status, and progress
	// the one for the same status.
	state, progress []byte
}

func newProgressHub[ID comparable, V any](source progressSource[ID, V], log obs.Log) *progressHub[ID, V] {
	return &progressHub[ID, V]{progressSource: source, log: log, hint: service.NewHint(), topics: make(map[ID]*progressTopic[ID])}
}

func (h *progressHub[ID, V]) watch(id ID) *progressWatcher[ID] {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) == 0 {
		h.ctx, h.cancel = context.WithCancel(context.Background())
	}
	t := h.topics[id]
	if t == nil {
		t = &progressTopic[ID]{watchers: make(map[*progressWatcher[ID]]bool), readAt: time.Now()}
		h.topics[id] = t
	}
	w := &progressWatcher[ID]{id: id, since: h.round, updates: make(chan progressUpdate, 1)}
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
func (h *progressHub[ID, V]) leave(w *progressWatcher[ID]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[w.id]; t != nil && t.watchers[w] {
		h.dropLocked(t, w)
	}
}

func (h *progressHub[ID, V]) dropLocked(t *progressTopic[ID], w *progressWatcher[ID]) {
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

// run reads until there are no watchers: all topics at regular intervals, and
// in between those with new watchers.
func (h *progressHub[ID, V]) run() {
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

func (h *progressHub[ID, V]) rest(until time.Time) {
	time.Sleep(progressGatherTime)
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-h.hint:
	case <-timer.C:
	}
}

func (h *progressHub[ID, V]) report(err error) {
	if err != nil {
		h.log.Warn(h.what+" updates unavailable", err)
	} else {
		h.log.Info(h.what + " updates available again")
	}
}

// intervalLocked returns the length of a round. It grows with the number of watchers.
func (h *progressHub[ID, V]) intervalLocked() time.Duration {
	return min(max(time.Duration(h.watchers)*time.Second/progressEventsMax, h.interval), progressIntervalMax)
}

// dueLocked starts a round and returns what to read in it.
func (h *progressHub[ID, V]) dueLocked(all bool) []ID {
	h.round++
	var ids []ID
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

// readAndSend reads promotions or templates and updates their watchers. longest is the
// maximum stride of those that do not change.
func (h *progressHub[ID, V]) readAndSend(ctx context.Context, round uint64, ids []ID, longest int) error {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	views, err := h.read(ctx, ids)
	if err != nil && reward.KindOf(err) == reward.KindInternal {
		err = &reward.Error{
			Kind: reward.KindUnavailable, Code: reward.CodeUnavailable, Detail: "reading the " + h.what + " failed; connect again", Err: err,
		}
	}
	frames := make(map[ID]*progressFrame, len(views))
	for _, v := range views {
		frames[h.idOf(v)] = h.frame(v)
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
			h.endLocked(t, round, h.missing(id))
		default:
			t.send(f, round, longest)
		}
	}
	return err
}

// send sends a view to the watchers that have not seen it.
func (t *progressTopic[ID]) send(f *progressFrame, round uint64, longest int) {
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
func (h *progressHub[ID, V]) failLocked(t *progressTopic[ID], round uint64, err error) {
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

func (h *progressHub[ID, V]) endLocked(t *progressTopic[ID], round uint64, err error) {
	for w := range t.watchers {
		if w.since < round {
			w.put(progressUpdate{err: err})
			h.dropLocked(t, w)
		}
	}
}

// put puts an update into the mailbox. It replaces an older one.
func (w *progressWatcher[ID]) put(n progressUpdate) {
	select {
	case <-w.updates:
	default:
	}
	w.updates <- n
}
