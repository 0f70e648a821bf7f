package books

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	reconcileEvery = time.Minute // unless something else is set
	reconcileTick  = time.Second // pause between looks for what is due
	// reconcileRound is how many promotions are checked at most between two
	// pauses, suspects aside: a thousand that idle must cost next to nothing, so
	// their turns come less often than the interval says.
	reconcileRound = 1
	// confirmAfter is how much later a bound has to be broken again before it
	// counts.
	confirmAfter = 10 * time.Second
	// compareShare bounds the time spent on comparing the rows of a promotion:
	// the pause is so many times what the last time took.
	compareShare = 100
	// reconcileAgain is the pause after rows, or the provider, could not be asked.
	reconcileAgain = 5 * time.Second
	chargesAgain   = 30 * time.Second
	// chargesNever is the pause after a provider said that it has no list.
	chargesNever = time.Hour
	// chargesPages bounds what is read at once of a list that has grown.
	chargesPages = 1000
	// reconcilerLease is the name that the one who keeps the books holds for so
	// long; it renews three times as often.
	reconcilerLease    = "reconciler"
	reconcilerLeaseTTL = 15 * time.Second
	reconcileRows      = 2 * time.Second // of a small read or write of rows
	reasonDrifts       = 4               // named in a pauseReason
)

// Config is what a Reconciler needs.
type Config struct {
	Store store.Store
	// Queue holds the streams; nil = there are none.
	Queue queue.Queue
	// Charges lists what the provider has charged.
	Charges Charges
	// Views returns the active promotions. Only the loop that Start runs calls it.
	Views func() map[reward.PromotionID]*store.PromotionView
	// Hint is called with a promotion that was paused; nil = nobody is told.
	Hint func(reward.PromotionID)
	// Instance is the name of this one among all.
	Instance string
	// Interval is how often each promotion is checked; 0 = a minute.
	// [reconcile.interval]
	Interval time.Duration
	// DispatchHorizon is the age at which a dispatch can no longer reach its
	// stream.
	DispatchHorizon time.Duration
	Metrics         *obs.Metrics
	Log             obs.Log
}

// Reconciler keeps the balance sheet: the counts that are kept against the
// rows, and the rows against what the provider says it has charged. While it
// runs, one instance at a time checks every promotion that is active or has
// just become final; a promotion whose books do not balance, twice in a row, is
// paused. Run does the same once, on demand, and can repair.
//
// A promotion that somebody resumes is not paused again for the same
// difference, unless it grows or another instance takes over.
type Reconciler struct {
	service.Base
	cfg   Config
	owner string
	ids   *service.IDs
	log   obs.Log

	// watched is what the one who keeps the books knows; only run's goroutine
	// looks at it, as at the rest of this block.
	watched     map[reward.PromotionID]*watched
	listAt      time.Time // before then the provider is not asked for its list
	listUnknown bool      // that it has none has been logged
	away        bool      // it gave no answer the last time

	mu    sync.Mutex // protects known
	known map[reward.PromotionID]breach
}

// watched is what is known of a promotion between two checks.
type watched struct {
	seenAt    time.Time // latest time among the active ones
	gone      bool      // it is not among them any more
	nextAt    time.Time
	compareAt time.Time // its rows are not compared before
	book      chargeBook
	suspects  []Drift // of the last check; one that is found again counts
	broken    bool
	unlisted  bool // the provider answered, but not with a list
}

// breach is what was done about the books of a promotion that do not balance.
type breach struct {
	told   []Drift // counted, logged and reported
	paused []Drift // the promotion was paused for them
}

// New makes a reconciler; it checks nothing before Start, or Run.
func New(cfg Config) *Reconciler {
	if cfg.Interval == 0 {
		cfg.Interval = reconcileEvery
	}
	return &Reconciler{
		cfg: cfg, owner: cfg.Instance + "/" + rand.Text()[:8], ids: service.NewIDs(), log: cfg.Log.For(obs.Balance),
		watched: make(map[reward.PromotionID]*watched), known: make(map[reward.PromotionID]breach),
	}
}

// Start checks the books in the background until Stop.
func (r *Reconciler) Start(ctx context.Context) { r.Base.Start(ctx, r.run) }

// run keeps the books while it holds the lease, until ctx ends.
func (r *Reconciler) run(ctx context.Context) {
	failed := false
	for ctx.Err() == nil {
		held, err := r.hold(ctx)
		switch {
		case err != nil && !failed && ctx.Err() == nil:
			failed = true
			r.log.Warn("reconciler lease unavailable", err)
		case err == nil && failed:
			failed = false
			r.log.Info("reconciler lease available again")
		}
		r.watch(time.Now(), held)
		if held {
			r.lead(ctx)
		}
		service.Sleep(ctx, service.Jitter(reconcilerLeaseTTL/3, 0.2))
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), reconcileRows)
	defer cancel()
	if err := r.cfg.Store.LeaseRelease(bounded, reconcilerLease, r.owner); err != nil {
		r.log.Warn("releasing lease failed", err, "lease", reconcilerLease)
	}
}

// hold takes or renews the lease.
func (r *Reconciler) hold(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileRows)
	defer cancel()
	l, err := r.cfg.Store.LeaseTake(ctx, store.LeaseTakeParams{Name: reconcilerLease, Owner: r.owner, TTL: reconcilerLeaseTTL})
	if err != nil {
		return false, fmt.Errorf("take the lease %q: %w", reconcilerLease, err)
	}
	return l.OK, nil
}

// watch notes what is active. What is not any more is checked once again by the
// one who keeps the books, and forgotten by the others when he must have done so.
func (r *Reconciler) watch(now time.Time, leading bool) {
	views := r.cfg.Views()
	for id := range views {
		w := r.watched[id]
		if w == nil {
			w = &watched{nextAt: r.spread(now)}
			r.watched[id] = w
		}
		w.seenAt, w.gone = now, false
	}
	for id, w := range r.watched {
		if _, active := views[id]; active {
			continue
		}
		if !leading && now.Sub(w.seenAt) > 2*r.cfg.Interval+reconcilerLeaseTTL {
			delete(r.watched, id)
			continue
		}
		if !w.gone {
			w.gone = true
			if len(w.suspects) == 0 { // otherwise it is looked at again when that is due
				w.nextAt = now
			}
		}
	}
}

// spread is when something new is checked first, so that not all are at once.
func (r *Reconciler) spread(now time.Time) time.Time {
	return now.Add(time.Duration(mathrand.Int64N(int64(r.cfg.Interval)))) //nolint:gosec // jitter is no secret
}

// lead checks what is due until the lease is lost or ctx ends.
func (r *Reconciler) lead(ctx context.Context) {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keeping.Go(func() {
		defer cancel()
		r.keep(ctx)
	})
	now := time.Now()
	for _, w := range r.watched { // what an earlier lead knew is old
		*w = watched{seenAt: w.seenAt, gone: w.gone, nextAt: r.spread(now)}
		if w.gone {
			w.nextAt = now
		}
	}
	defer func() {
		for id, w := range r.watched {
			if w.broken {
				r.cfg.Metrics.SetBalance(id, false) // whoever leads next tells
			}
		}
	}()
	failures := 0
	for {
		r.watch(time.Now(), true)
		failures = r.round(ctx, failures)
		if !service.Sleep(ctx, service.Jitter(reconcileTick, 0.2)) {
			return
		}
	}
}

// keep renews the lease until ctx ends or somebody else may have it.
func (r *Reconciler) keep(ctx context.Context) {
	heldAt := time.Now()
	for service.Sleep(ctx, reconcilerLeaseTTL/3) {
		began := time.Now()
		held, err := r.hold(ctx)
		switch {
		case err == nil && held:
			heldAt = began
		case err == nil, time.Since(heldAt) >= reconcilerLeaseTTL:
			return
		}
	}
}

// round checks what is due. Failures in a row are logged when they begin and
// each time their number has doubled.
func (r *Reconciler) round(ctx context.Context, failures int) int {
	var due []reward.PromotionID
	now := time.Now()
	for id, w := range r.watched {
		if !now.Before(w.nextAt) {
			due = append(due, id)
		}
	}
	slices.SortFunc(due, func(a, b reward.PromotionID) int {
		return cmp.Or(r.watched[a].nextAt.Compare(r.watched[b].nextAt), cmp.Compare(a, b))
	})
	checked := 0 // of those that nothing is suspected of
	for _, id := range due {
		w := r.watched[id]
		if len(w.suspects) == 0 && !w.gone {
			if checked == reconcileRound {
				continue
			}
			checked++
		}
		err := r.check(ctx, id, w)
		switch {
		case ctx.Err() != nil:
			return failures
		case reward.HasCode(err, reward.CodeNotFound):
			r.balanced(id, w)
			delete(r.watched, id)
		case err != nil:
			w.nextAt = time.Now().Add(service.Jitter(reconcileAgain, 0.2))
			failures++
			if failures&(failures-1) == 0 {
				r.log.Warn("checking balance failed", err, "promotion_id", id, "failures", failures)
			}
		default:
			failures = 0
		}
	}
	return failures
}

// check looks at the books of a promotion. What differs for the first time is
// looked at again confirmAfter later; what differs again is a breach. Before it
// counts, the provider's list is read from its beginning.
func (r *Reconciler) check(ctx context.Context, id reward.PromotionID, w *watched) error {
	var drifts []Drift
	compared := !time.Now().Before(w.compareAt) || !w.broken && slices.ContainsFunc(w.suspects, func(d Drift) bool { return !d.ofCharges() })
	if compared {
		began := time.Now()
		kept, rows, err := r.cfg.Store.SummaryCompare(ctx, id, false)
		if err != nil {
			return fmt.Errorf("compare the counts with the rows: %w", err)
		}
		w.compareAt = time.Now().Add(compareShare * time.Since(began))
		drifts = compareCounts(id, &kept, &rows)
	}
	view, charged, listed, err := r.list(ctx, id, w)
	if err != nil {
		return err
	}
	if !w.broken && len(confirmed(w.suspects, charged)) > 0 {
		w.book = chargeBook{}
		if view, charged, listed, err = r.list(ctx, id, w); err != nil {
			return err
		}
	}
	drifts = append(drifts, charged...)
	again := confirmed(w.suspects, drifts)
	var open []Drift // what could not be looked at now
	for _, d := range w.suspects {
		if d.ofCharges() && !listed || !d.ofCharges() && !compared {
			open = append(open, d)
		}
	}
	w.suspects = append(drifts, open...)
	switch {
	case len(w.suspects) == 0:
		r.balanced(id, w)
		w.broken = false
		if w.gone {
			delete(r.watched, id)
		}
	case len(again) > 0:
		w.broken = true
		r.cfg.Metrics.SetBalance(id, true)
		if err := r.answer(ctx, view, again); err != nil {
			return err
		}
	}
	w.nextAt = time.Now().Add(service.Jitter(r.cfg.Interval*9/10, 0.1))
	switch {
	case len(drifts) > len(again), len(open) > 0 && !w.broken:
		w.nextAt = time.Now().Add(confirmAfter)
	case !listed && r.away && r.listAt.Before(w.nextAt):
		w.nextAt = r.listAt.Add(service.Jitter(reconcileAgain/2, 0.9))
	}
	return nil
}

// list reads on in the provider's list, the counts in between, and compares.
// listed is false when the provider has no list or could not be asked. One that
// does not answer is left alone for a while, whatever the promotion.
func (r *Reconciler) list(ctx context.Context, id reward.PromotionID, w *watched) (view store.PromotionView, drifts []Drift, listed bool, err error) {
	if time.Now().Before(r.listAt) {
		view, err = r.view(ctx, id)
		return view, nil, false, err
	}
	view, drifts, err = r.compare(ctx, id, &w.book)
	var failed listError
	switch {
	case err == nil:
		if r.away || w.unlisted {
			r.log.Info("charge list available again", "promotion_id", id)
		}
		r.away, w.unlisted = false, false
		return view, drifts, true, nil
	case !errors.As(err, &failed) || ctx.Err() != nil:
		return view, nil, false, err
	}
	var answered *money.ChargesError
	switch isAnswer := errors.As(err, &answered); {
	case errors.Is(err, money.ErrNoCharges):
		r.listAt, r.away = time.Now().Add(chargesNever), false
		if !r.listUnknown {
			r.log.Info("provider has no charge list", "error", err)
		}
		r.listUnknown = true
	case isAnswer && answered.Answer.Status != 0 && answered.Answer.Class != reward.AnswerThrottled:
		if !w.unlisted {
			r.log.Warn("charge list unusable", err, "promotion_id", id)
		}
		w.unlisted = true
	default:
		if !r.away {
			r.log.Warn("charge list unavailable", err, "promotion_id", id)
		}
		r.away = true
		r.listAt = time.Now().Add(chargesAgain)
		if isAnswer {
			r.listAt = time.Now().Add(max(chargesAgain, answered.Answer.RetryAfter))
		}
	}
	view, err = r.view(ctx, id)
	return view, nil, false, err
}

func (r *Reconciler) view(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileRows)
	defer cancel()
	return r.cfg.Store.PromotionGet(ctx, id)
}

// listError says that the provider's list could not be read.
type listError struct{ err error }

func (e listError) Error() string { return e.err.Error() }
func (e listError) Unwrap() error { return e.err }

// compare reads the list, then the counts, then the list again, as far as is
// needed: a list that covers the counts already does so later too.
func (r *Reconciler) compare(ctx context.Context, id reward.PromotionID, book *chargeBook) (store.PromotionView, []Drift, error) {
	never := func(worth) bool { return false }
	if err := book.read(ctx, r.cfg.Charges, id, chargesPages, never); err != nil {
		return store.PromotionView{}, nil, listError{err}
	}
	first := book.total()
	v, err := r.view(ctx, id)
	if err != nil {
		return v, nil, err
	}
	paid := in(&v.Counts, reward.Succeeded)
	if !first.covers(paid) {
		if err := book.read(ctx, r.cfg.Charges, id, 0, func(t worth) bool { return t.covers(paid) }); err != nil {
			return v, nil, listError{err}
		}
	}
	return v, compareCharges(id, first, &v.Counts, book.total()), nil
}

// balanced says that the books of a promotion balance again.
func (r *Reconciler) balanced(id reward.PromotionID, w *watched) {
	if w.broken {
		r.cfg.Metrics.SetBalance(id, false)
		r.log.Info("books balance again", "promotion_id", id)
	}
	r.forget(id)
}

func (r *Reconciler) forget(id reward.PromotionID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, id)
}

// answer does what has to be done about a breach: a promotion that runs is
// paused; it is counted, logged and reported once, and again when it grows.
func (r *Reconciler) answer(ctx context.Context, v store.PromotionView, drifts []Drift) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[v.ID]
	report := Reconciliation{ID: r.ids.Next(), Checked: 1, Drifts: drifts, At: time.Now().UTC()}
	pause := v.Status == reward.Running && grew(known.paused, drifts)
	if pause {
		err := r.pause(ctx, v.ID, fmt.Sprintf("the books do not balance: %s (reconciliation %d)", sentence(drifts), report.ID))
		if err != nil {
			return err
		}
		known.paused = drifts
	}
	if !pause && !grew(known.told, drifts) {
		return nil
	}
	known.told = drifts
	r.known[v.ID] = known
	r.cfg.Metrics.Breached()
	r.log.Error("books do not balance", errors.New(sentence(drifts)), "promotion_id", v.ID, "status", v.Status, "paused", pause, "reconciliation", report.ID)
	if err := r.save(ctx, report); err != nil {
		r.log.Warn("saving report failed", err, "promotion_id", v.ID)
	}
	return nil
}

// sentence says what differs, in numbers.
func sentence(drifts []Drift) string {
	var parts []string
	for _, d := range drifts[:min(len(drifts), reasonDrifts)] {
		parts = append(parts, d.Detail)
	}
	if more := len(drifts) - reasonDrifts; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

func (r *Reconciler) pause(ctx context.Context, id reward.PromotionID, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, reconcileRows)
	defer cancel()
	_, err := r.cfg.Store.PromotionMove(ctx, store.PromotionMoveParams{
		ID: id, From: []reward.PromotionStatus{reward.Running}, To: reward.Paused,
		Reason: reason, Event: store.EventBreach, Now: time.Now(),
	})
	if err != nil {
		return fmt.Errorf("pause a promotion whose books do not balance: %w", err)
	}
	if r.cfg.Hint != nil {
		r.cfg.Hint(id)
	}
	return nil
}

func (r *Reconciler) save(ctx context.Context, report Reconciliation) error {
	text, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("write a reconciliation as JSON: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reconcileRows)
	defer cancel()
	return r.cfg.Store.ReconciliationSave(ctx, store.Reconciliation{ID: report.ID, Report: text, At: report.At})
}
