// Package books checks the books of promotions. It compares the stored counts
// with the rows and with the provider's charges. On demand it also
// compares the streams with the QUEUED rows. It pauses promotions whose books do not balance.
package books

import (
	"cmp"
	"context"
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
	roundInterval = time.Second // between rounds of checks
	// roundBudget limits the time that a round spends on promotions that have changed
	// since their books last balanced. It checks at least one of them.
	roundBudget = roundInterval / 10
	// unchangedMax limits how many unchanged promotions a round checks: their books can
	// only differ by what the provider or a person did. After n of them, the next such
	// check is n rounds later. They are made in a row because an idle instance must
	// first learn from the others whether the provider works (see package governor).
	unchangedMax = 5
	// confirmAfter is when a difference must be found again before it counts.
	confirmAfter = 10 * time.Second
	// compareFactor limits the reads of all rows of a promotion: after one that took d,
	// none begins for compareFactor × d, unless a suspected difference must be checked
	// again.
	compareFactor = 100
	// The pauses after a failed read of rows and of charges.
	rowsBackoff    = 5 * time.Second
	chargesBackoff = 30 * time.Second
	// noChargesBackoff is the pause if the provider has no list.
	noChargesBackoff = time.Hour
	// chargesPagesMax limits the pages that a check reads before the counts. The read
	// after the counts ends when it has reached them.
	chargesPagesMax = 1000
	// takeover is a little longer than the takeover of a crashed instance's promotions.
	takeover = 30 * time.Second
	// rowsTimeout limits a small read or write of rows. SQLite has one writer, which
	// uploads keep busy for seconds.
	rowsTimeout = 15 * time.Second
	// pauseTimeout limits how long a check waits to pause one promotion, which must not
	// hold up the checks of the others. The next check tries again.
	pauseTimeout = 2 * time.Second
	reasonMax    = 4 // differences named in a pauseReason
)

type bookRows interface {
	PromotionActive(ctx context.Context) ([]store.PromotionView, error)
	PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error)
	PromotionMove(ctx context.Context, p store.PromotionMoveParams) (reward.Promotion, error)
	PayoutList(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error)
	PayoutGetMany(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error)
	SummaryCompare(ctx context.Context, id reward.PromotionID, repair bool) (store.Comparison, error)
	SharedKeys(ctx context.Context, id reward.PromotionID) (store.SharedKeys, error)
	ReconciliationSave(ctx context.Context, r store.Reconciliation) error
}

// Config configures a Reconciler.
type Config struct {
	Store bookRows
	// Queue holds the streams. If it is nil, streams are not compared.
	Queue queue.Queue
	// Charges reads the provider's list of charges.
	Charges Charges
	// Views returns the active promotions. Only the background loop calls it.
	Views func() map[reward.PromotionID]*store.PromotionView
	// Owns reports whether this instance checks a promotion now; nil: all of them. Only
	// the background loop calls it.
	Owns func(reward.PromotionID) bool
	// Hint is called with a promotion that was paused.
	Hint     func(reward.PromotionID)
	Interval time.Duration // between the checks of a promotion
	// DispatchHorizon is the age at which a dispatch that is not in its stream
	// can no longer get there.
	DispatchHorizon time.Duration
	Metrics         *obs.Metrics
	Log             obs.Log
}

// Reconciler compares the stored counts with the rows and with the provider's charges.
// Between Start and Stop, it checks this instance's promotions that are active or have
// just become final, and pauses those whose books do not balance twice in a row. Run
// is safe for concurrent use.
//
// While promotions change hands, two instances may check the same one, or none. That is
// harmless: a check changes nothing, a pause names the status that it expects, and the
// new owner finds a difference by itself.
//
// After a resume, a promotion is not paused again for the same difference unless it
// grows, another instance takes over, or this one restarts.
type Reconciler struct {
	service.Base
	cfg Config
	ids *service.IDs
	log obs.Log

	// Only the goroutine of loop uses the fields of this block.
	watched         map[reward.PromotionID]*watched
	unchangedAt     time.Time // earliest time of the next check of an unchanged promotion
	listAt          time.Time // earliest time of the next read of the list of charges
	noListLogged    bool      // the log says that the provider has no list
	listUnavailable bool      // the latest read of the list failed

	mu    sync.Mutex // protects known
	known map[reward.PromotionID]breach

	shared sync.Map // the promotions with a breach by KeyShared
}

// watched is the state of a promotion between two checks.
type watched struct {
	owned  bool      // this instance checks it
	seenAt time.Time // when it was last active
	gone   bool      // it is no longer active
	// seen are its counts in the latest view; clean are those at the latest check, or
	// nil if that found a difference or could not read the list.
	seen      reward.Counts
	clean     *reward.Counts
	nextAt    time.Time // of the next check
	compareAt time.Time // earliest time of the next comparison of its rows
	book      chargeBook
	suspects  []store.Drift // of the latest check; those found again count
	broken    bool          // its books do not balance
	unusable  bool          // the latest response was not a valid list
}

// changed reports whether the counts have changed since the books last balanced.
func (w *watched) changed() bool { return w.clean == nil || *w.clean != w.seen }

// limited reports whether a round may leave the check to a later one.
func (w *watched) limited() bool { return len(w.suspects) == 0 && !w.gone }

// breach records the handled differences of a promotion.
type breach struct {
	reported []store.Drift // counted, logged and reported
	paused   []store.Drift // the promotion was paused for them
}

// New returns a reconciler that checks nothing before Start or Run.
func New(cfg Config) *Reconciler {
	return &Reconciler{
		cfg: cfg, ids: service.NewIDs(), log: cfg.Log.For(obs.Balance),
		watched: make(map[reward.PromotionID]*watched), known: make(map[reward.PromotionID]breach),
	}
}

// Start checks the books in the background until Stop.
func (r *Reconciler) Start(ctx context.Context) { r.Base.Start(ctx, r.loop) }

func (r *Reconciler) loop(ctx context.Context) {
	defer func() {
		for id, w := range r.watched {
			r.release(id, w)
		}
	}()
	report := r.log.Streak("checking balance failed", "")
	for {
		r.watch(time.Now())
		r.round(ctx, report)
		if !service.Sleep(ctx, service.Jitter(roundInterval, 0.2)) {
			return
		}
	}
}

// watch updates the watched promotions. It watches those of other instances too, so
// that a new owner also makes the last check of one that is no longer active by then.
// It drops them after the time in which the owner, or a new one, has made that check.
func (r *Reconciler) watch(now time.Time) {
	views := r.cfg.Views()
	for id, v := range views {
		w := r.watched[id]
		if w == nil {
			w = &watched{}
			r.watched[id] = w
		}
		w.seenAt, w.gone, w.seen = now, false, v.Counts
	}
	for id, w := range r.watched {
		_, active := views[id]
		switch owned := r.cfg.Owns == nil || r.cfg.Owns(id); {
		case owned && !w.owned:
			w.owned, w.nextAt = true, now.Add(mathrand.N(r.cfg.Interval)) //nolint:gosec // it spreads the checks, and is no secret
			if !active {
				w.gone, w.nextAt = true, now
			}
		case !owned && w.owned:
			r.release(id, w)
		}
		switch {
		case active:
		case !w.owned && now.Sub(w.seenAt) > 2*r.cfg.Interval+takeover:
			delete(r.watched, id)
		case !w.gone:
			w.gone = true
			if len(w.suspects) == 0 { // otherwise its second check is due soon
				w.nextAt = now
			}
		}
	}
}

// release forgets what the next owner of a promotion finds by itself.
func (r *Reconciler) release(id reward.PromotionID, w *watched) {
	if w.broken {
		r.cfg.Metrics.SetBalance(id, false) // the next owner sets it
	}
	*w = watched{seenAt: w.seenAt, gone: w.gone, seen: w.seen}
}

func (r *Reconciler) round(ctx context.Context, report func(error, ...any)) {
	type check struct {
		id reward.PromotionID
		*watched
	}
	var due []check
	now := time.Now()
	rests := now.Before(r.unchangedAt) // it checks no unchanged promotion
	for id, w := range r.watched {
		if !w.owned || now.Before(w.nextAt) || rests && w.limited() && !w.changed() {
			continue
		}
		due = append(due, check{id, w})
	}
	slices.SortFunc(due, func(a, b check) int { return cmp.Or(a.nextAt.Compare(b.nextAt), cmp.Compare(a.id, b.id)) })
	var spent time.Duration // on those that have changed
	unchanged := 0          // checked
	for _, c := range due {
		id, w := c.id, c.watched
		began, limited, changed := time.Now(), w.limited(), w.changed()
		if limited && (changed && spent >= roundBudget || !changed && unchanged == unchangedMax) {
			continue
		}
		err := r.check(ctx, id, w)
		switch {
		case ctx.Err() != nil:
			return
		case reward.HasCode(err, reward.CodeNotFound):
			r.balanced(id, w)
			delete(r.watched, id)
		case err != nil:
			w.nextAt = time.Now().Add(service.Jitter(rowsBackoff, 0.2))
			report(err, "promotion_id", id)
		default:
			report(nil)
		}
		switch {
		case limited && changed:
			spent += time.Since(began)
		case limited:
			unchanged++
		}
	}
	if unchanged > 0 {
		// Half a round less: the rounds are not exactly roundInterval apart.
		r.unchangedAt = now.Add(time.Duration(unchanged)*roundInterval - roundInterval/2)
	}
}

// check checks the books of a promotion. It checks a new difference again after
// confirmAfter; one found twice is a breach. For one with the provider it then reads
// the list from the start.
func (r *Reconciler) check(ctx context.Context, id reward.PromotionID, w *watched) error {
	var drifts []store.Drift
	suspected := slices.ContainsFunc(w.suspects, func(d store.Drift) bool { return !ofCharges(d) })
	compared := !time.Now().Before(w.compareAt) || !w.broken && suspected
	if compared {
		began := time.Now()
		var err error
		if drifts, err = r.compareRows(ctx, id, false); err != nil {
			return err
		}
		w.compareAt = time.Now().Add(compareFactor * time.Since(began))
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
	var unchecked []store.Drift // the suspects that could not be checked now
	for _, d := range w.suspects {
		if ofCharges(d) && !listed || !ofCharges(d) && !compared {
			unchecked = append(unchecked, d)
		}
	}
	w.suspects = append(drifts, unchecked...)
	w.clean = nil
	switch {
	case len(w.suspects) == 0:
		r.balanced(id, w)
		w.broken = false
		if listed || !r.listUnavailable && !w.unusable { // the provider may have no list
			seen := w.seen
			w.clean = &seen
		}
		if w.gone {
			delete(r.watched, id)
		}
	case len(again) > 0:
		w.broken = true
		r.cfg.Metrics.SetBalance(id, true)
		if err := r.handle(ctx, view, again); err != nil {
			return err
		}
	}
	w.nextAt = time.Now().Add(service.Jitter(r.cfg.Interval*9/10, 0.1))
	switch {
	case len(drifts) > len(again), len(unchecked) > 0 && !w.broken:
		w.nextAt = time.Now().Add(confirmAfter)
	case !listed && r.listUnavailable && r.listAt.Before(w.nextAt):
		w.nextAt = r.listAt.Add(service.Jitter(rowsBackoff/2, 0.9))
	}
	return nil
}

// compareRows compares the counts and transaction keys with the rows, and may repair.
func (r *Reconciler) compareRows(ctx context.Context, id reward.PromotionID, repair bool) ([]store.Drift, error) {
	c, err := r.cfg.Store.SummaryCompare(ctx, id, repair)
	if err != nil {
		return nil, fmt.Errorf("compare the counts with the rows: %w", err)
	}
	drifts := compareCounts(id, &c)
	for i := range drifts {
		drifts[i].Repaired = repair
	}
	k, err := r.cfg.Store.SharedKeys(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("look for shared transaction keys: %w", err)
	}
	return append(drifts, compareKeys(id, k)...), nil
}

// list reads the provider's list further and compares it. listed is false if the list
// could not be read. If there is no answer or no list, it backs off for all promotions.
func (r *Reconciler) list(ctx context.Context, id reward.PromotionID, w *watched) (view store.PromotionView, drifts []store.Drift, listed bool, err error) {
	if !time.Now().Before(r.listAt) {
		var unlisted error
		view, drifts, unlisted, err = r.compare(ctx, id, &w.book)
		switch {
		case err != nil || unlisted != nil && ctx.Err() != nil:
			return view, nil, false, cmp.Or(err, unlisted)
		case unlisted == nil:
			if r.listUnavailable || w.unusable {
				r.log.Info("charge list available again", "promotion_id", id)
			}
			r.listUnavailable, w.unusable = false, false
			return view, drifts, true, nil
		}
		r.handleUnlisted(id, w, unlisted)
	}
	view, err = r.view(ctx, id)
	return view, nil, false, err
}

// handleUnlisted logs once why the provider's list cannot be read, and decides when it
// is read again.
func (r *Reconciler) handleUnlisted(id reward.PromotionID, w *watched, err error) {
	answered, isAnswer := errors.AsType[*money.ChargesError](err)
	switch {
	case errors.Is(err, money.ErrNoCharges):
		r.listAt, r.listUnavailable = time.Now().Add(noChargesBackoff), false
		if !r.noListLogged {
			r.log.Info("provider has no charge list", "error", err)
		}
		r.noListLogged = true
	case isAnswer && answered.Answer.Status != 0 && answered.Answer.Class != reward.AnswerThrottled:
		if !w.unusable {
			r.log.Warn("charge list unusable", err, "promotion_id", id)
		}
		w.unusable = true
	default:
		if !r.listUnavailable {
			r.log.Warn("charge list unavailable", err, "promotion_id", id)
		}
		r.listUnavailable = true
		r.listAt = time.Now().Add(chargesBackoff)
		if isAnswer {
			r.listAt = time.Now().Add(max(chargesBackoff, answered.Answer.RetryAfter))
		}
	}
}

func (r *Reconciler) view(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	ctx, cancel := context.WithTimeout(ctx, rowsTimeout)
	defer cancel()
	return r.cfg.Store.PromotionGet(ctx, id)
}

// compare reads the list, then the counts, then the list until it has reached these.
// unlisted is why the list could not be read.
func (r *Reconciler) compare(ctx context.Context, id reward.PromotionID, book *chargeBook) (v store.PromotionView, drifts []store.Drift, unlisted, err error) {
	if err := book.read(ctx, r.cfg.Charges, id, chargesPagesMax, nil); err != nil {
		return v, nil, err, nil
	}
	first := book.total()
	if v, err = r.view(ctx, id); err != nil {
		return v, nil, nil, err
	}
	paid := in(&v.Counts, reward.Succeeded)
	if !first.covers(paid) {
		if err := book.read(ctx, r.cfg.Charges, id, 0, func(t worth) bool { return t.covers(paid) }); err != nil {
			return v, nil, err, nil
		}
	}
	return v, compareCharges(v.Promotion, first, &v.Counts, book.total()), nil, nil
}

// balanced records that the books of a promotion balance.
func (r *Reconciler) balanced(id reward.PromotionID, w *watched) {
	if w.broken {
		r.cfg.Metrics.SetBalance(id, false)
		r.log.Info("books balance again", "promotion_id", id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, id)
}

// handle pauses a running promotion for a breach, and reports the breach once, and
// again if it grows.
func (r *Reconciler) handle(ctx context.Context, v store.PromotionView, drifts []store.Drift) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[v.ID]
	report := r.reportOf(drifts)
	pause := v.Status == reward.Running && grew(known.paused, drifts)
	if pause {
		bounded, cancel := context.WithTimeout(ctx, pauseTimeout)
		err := r.pause(bounded, v.ID, fmt.Sprintf("the books do not balance: %s (reconciliation %d)", sentence(drifts), report.ID))
		cancel()
		if err != nil {
			return err
		}
		known.paused = drifts
	}
	if !pause && !grew(known.reported, drifts) {
		return nil
	}
	known.reported = drifts
	r.known[v.ID] = known
	r.publish(ctx, report, "books do not balance", "promotion_id", v.ID, "status", v.Status, "paused", pause)
	return nil
}

// reportOf returns a new report about one promotion.
func (r *Reconciler) reportOf(drifts []store.Drift) store.ReconciliationReport {
	return store.ReconciliationReport{ID: r.ids.Next(), Checked: 1, Drifts: drifts, At: time.Now().UTC()}
}

// publish counts, logs and stores the report of a breach.
func (r *Reconciler) publish(ctx context.Context, report store.ReconciliationReport, what string, attrs ...any) {
	r.cfg.Metrics.Breached()
	r.log.Error(what, errors.New(sentence(report.Drifts)), append(attrs, "reconciliation", report.ID)...)
	if err := r.save(ctx, report); err != nil {
		r.log.Warn("saving report failed", err, "promotion_id", report.Drifts[0].PromotionID)
	}
}

// ChargedTwice handles a payout that the provider confirmed with two transaction
// keys. It pauses the promotion if it is RUNNING, and counts, logs and reports the
// breach. An attempt of the payout keeps the second key.
func (r *Reconciler) ChargedTwice(ctx context.Context, c store.SecondCharge) {
	one, two := int64(1), int64(2)
	r.breach(ctx, "payout charged twice", c.TargetID, store.Drift{
		PromotionID: c.PromotionID, What: driftTwice, Store: &one, Provider: &two,
		Detail: fmt.Sprintf("the provider has charged target %s twice: its payout has transaction %s, and the provider confirmed %s too",
			c.TargetID, reward.Quote(c.Recorded), reward.Quote(c.TransactionKey)),
	})
}

// KeyShared handles a payout that the provider confirmed with the transaction key of
// another one, as ChargedTwice does. The first such payout pauses the promotion, and
// those that were in flight then say nothing more.
func (r *Reconciler) KeyShared(ctx context.Context, key string, first, second store.PayoutID) {
	two, one := int64(2), int64(1)
	r.breach(ctx, "transaction key of another payout", second.TargetID, store.Drift{
		PromotionID: second.PromotionID, What: driftShared, Store: &two, Provider: &one,
		Detail: fmt.Sprintf("the provider has confirmed target %s with transaction %s, which target %s of promotion %s has: it paid at most one of them",
			second.TargetID, reward.Quote(key), first.TargetID, first.PromotionID),
	})
}

func (r *Reconciler) breach(ctx context.Context, what string, target reward.TargetID, drift store.Drift) {
	report := r.reportOf([]store.Drift{drift})
	err := r.pause(ctx, drift.PromotionID, fmt.Sprintf("%s (reconciliation %d)", drift.Detail, report.ID))
	if err != nil && !reward.HasCode(err, reward.CodeIllegalState) {
		r.log.Warn("pausing promotion failed", err, "promotion_id", drift.PromotionID)
	}
	if drift.What == driftShared {
		if _, before := r.shared.LoadOrStore(drift.PromotionID, true); before && reward.HasCode(err, reward.CodeIllegalState) {
			if v, err := r.view(ctx, drift.PromotionID); err == nil && v.Status == reward.Paused {
				return
			}
		}
	}
	r.publish(ctx, report, what, "promotion_id", drift.PromotionID, "target_id", target, "paused", err == nil)
}

// sentence joins the details of up to reasonMax differences.
func sentence(drifts []store.Drift) string {
	var parts []string
	for _, d := range drifts[:min(len(drifts), reasonMax)] {
		parts = append(parts, d.Detail)
	}
	if more := len(drifts) - reasonMax; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

func (r *Reconciler) pause(ctx context.Context, id reward.PromotionID, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, rowsTimeout)
	defer cancel()
	_, err := r.cfg.Store.PromotionMove(ctx, store.PromotionMoveParams{
		ID: id, From: []reward.PromotionStatus{reward.Running}, To: reward.Paused,
		Reason: reason, Event: store.EventBreach, Now: time.Now(),
	})
	if err != nil {
		return fmt.Errorf("pause a promotion whose books do not balance: %w", err)
	}
	r.cfg.Hint(id)
	return nil
}

func (r *Reconciler) save(ctx context.Context, report store.ReconciliationReport) error {
	row, err := report.Row()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rowsTimeout)
	defer cancel()
	return r.cfg.Store.ReconciliationSave(ctx, row)
}
