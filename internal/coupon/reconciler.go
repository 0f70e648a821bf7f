package coupon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// compareTries bounds how often gate and rows are read until both are at one
	// version; a template that is issued from all the time is compared as far as
	// it stands still.
	compareTriesMax = 20
	compareInterval = 20 * time.Millisecond
	driftsMax       = 1000 // users named in one report
	// compareAll is in how many rounds also those are compared that have not
	// changed: somebody may have changed the gate by hand.
	compareAllEvery = 10
)

// Reconciler compares gates with rows, and the rows with themselves. It is
// exact under load: what differs counts only when nothing of it has changed
// between the version of the gate and that of the rows.
// [periodic synchronisation]
type Reconciler struct {
	rows      store.Store
	gate      gate.Gate
	templates *TemplateCache
	ids       *service.IDs
	instance  string
	interval  time.Duration
	log       obs.Log
}

// Drift is one thing that differs.
type Drift struct {
	TemplateID reward.TemplateID `json:"templateId,string"`
	// What differs: "live" or "issuedTotal" (Kept, the template's counters, against
	// Store, the coupons), "total", "stock", "count", "issued_total", "settled"
	// (Redis against Store, the template), "user" (the coupons of UserID that the
	// gate knows of against those he has).
	What     string `json:"what"`
	UserID   string `json:"userId,omitempty"`
	Store    *int64 `json:"store"`
	Redis    *int64 `json:"redis"`
	Kept     *int64 `json:"kept,omitempty"`
	Detail   string `json:"detail"`
	Repaired bool   `json:"repaired"`
}

// Reconciliation is what came of one.
type Reconciliation struct {
	ID      int64     `json:"id,string"`
	Checked int       `json:"checked"` // templates
	Drifts  []Drift   `json:"drifts"`
	Skipped []string  `json:"skipped,omitempty"` // what could not be compared, and why
	At      time.Time `json:"at"`
}

// ReconcileCommand asks for a reconciliation.
type ReconcileCommand struct {
	TemplateID *reward.TemplateID // nil = all active ones
	// Repair makes the gate say what the rows say.
	Repair bool
}

// Run compares, keeps the report and returns it.
func (r *Reconciler) Run(ctx context.Context, cmd ReconcileCommand) (Reconciliation, error) {
	var ids []reward.TemplateID
	if cmd.TemplateID != nil {
		if _, err := r.rows.TemplateGet(ctx, *cmd.TemplateID); err != nil {
			return Reconciliation{}, err
		}
		ids = append(ids, *cmd.TemplateID)
	} else {
		active, err := r.rows.TemplateActive(ctx, time.Now().Add(-r.templates.closedRetention))
		if err != nil {
			return Reconciliation{}, err
		}
		for _, t := range active {
			ids = append(ids, t.ID)
		}
	}
	report := Reconciliation{ID: r.ids.Next(), Checked: len(ids), Drifts: []Drift{}}
	for _, id := range ids {
		if err := r.compare(ctx, id, cmd.Repair, &report); err != nil {
			if cmd.TemplateID != nil || ctx.Err() != nil {
				return Reconciliation{}, fmt.Errorf("template %s: %w", id, err)
			}
			report.Skipped = append(report.Skipped, fmt.Sprintf("template %s: %v", id, err))
		}
	}
	return report, r.save(ctx, &report)
}

// save keeps a report, and tells the log what differed.
func (r *Reconciler) save(ctx context.Context, report *Reconciliation) error {
	report.At = time.Now().UTC()
	for _, d := range report.Drifts {
		r.log.Warn(obs.Unbalanced, errors.New(d.Detail), "template_id", d.TemplateID, "what", d.What, "repaired", d.Repaired)
	}
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	return r.rows.ReconciliationSave(ctx, store.Reconciliation{ID: report.ID, Report: text, At: report.At})
}

// run compares, and repairs, everything that has changed since it did so last,
// and now and then everything, again and again; one instance at a time does. What differs is kept as a
// report.
func (r *Reconciler) run(ctx context.Context) {
	compared := make(map[reward.TemplateID]int64) // by version
	n := 0
	for service.Sleep(ctx, service.Jitter(r.interval, 0.2)) {
		n++
		if err := r.round(ctx, compared, n%compareAllEvery == 0); err != nil && ctx.Err() == nil {
			r.log.Warn(obs.Failed, err, "doing", "reconciling")
		}
	}
}

func (r *Reconciler) round(ctx context.Context, compared map[reward.TemplateID]int64, all bool) error {
	l, err := r.rows.LeaseTake(ctx, store.LeaseTakeParams{Name: "coupon reconciler", Owner: r.instance, TTL: 3 * r.interval})
	if err != nil || !l.OK {
		return err
	}
	report := Reconciliation{ID: r.ids.Next(), Drifts: []Drift{}}
	var errs []error
	active := make(map[reward.TemplateID]bool)
	for _, t := range r.templates.active() {
		active[t.ID] = true
		if version, known := compared[t.ID]; known && version == t.Version && !all {
			continue
		}
		if err := r.compare(ctx, t.ID, true, &report); err != nil {
			errs = append(errs, fmt.Errorf("template %s: %w", t.ID, err))
			continue
		}
		compared[t.ID] = t.Version
		report.Checked++
	}
	maps.DeleteFunc(compared, func(id reward.TemplateID, _ int64) bool { return !active[id] })
	if len(report.Drifts) > 0 {
		errs = append(errs, r.save(ctx, &report))
	}
	return errors.Join(errs...)
}

func (r *Reconciler) compare(ctx context.Context, id reward.TemplateID, repair bool, report *Reconciliation) error {
	if err := r.recount(ctx, id, report); err != nil {
		return err
	}
	for range compareTriesMax {
		done, err := r.compareOnce(ctx, id, repair, report)
		if done || err != nil {
			return err
		}
		if !service.Sleep(ctx, compareInterval) {
			return context.Cause(ctx)
		}
	}
	report.Skipped = append(report.Skipped, fmt.Sprintf("template %s changed all the time: its counters were not compared", id))
	return nil
}

// recount compares the counters of the rows with the coupons, in one snapshot.
func (r *Reconciler) recount(ctx context.Context, id reward.TemplateID, report *Reconciliation) error {
	count, err := r.rows.CouponRecount(ctx, id)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		what       string
		kept, rows int64
	}{{"live", count.KeptLive, count.Live}, {"issuedTotal", count.KeptIssuedTotal, count.IssuedTotal}} {
		if c.kept != c.rows {
			report.Drifts = append(report.Drifts, Drift{
				TemplateID: id, What: c.what, Store: &c.rows, Kept: &c.kept,
				Detail: fmt.Sprintf("%s of template %s is kept as %d, and its coupons are %d", c.what, id, c.kept, c.rows),
			})
		}
	}
	return nil
}

// compareOnce compares a gate with rows; false = they moved, try again.
func (r *Reconciler) compareOnce(ctx context.Context, id reward.TemplateID, repair bool, report *Reconciliation) (bool, error) {
	headers, err := r.gate.Headers(ctx, []reward.TemplateID{id})
	if err != nil {
		return false, err
	}
	before := headers[0]
	if !before.Exists || !before.Loaded {
		return true, nil // nothing is promised; it is loaded from the rows when somebody asks
	}
	known, first, err := r.gateHoldings(ctx, id)
	if err != nil {
		return errors.Is(err, gate.ErrNotLoaded), ignore(err, gate.ErrNotLoaded)
	}
	var t reward.CouponTemplate
	rows := make(map[string]store.CouponFact, len(known))
	err = r.rows.CouponSnapshot(ctx, id, func(row reward.CouponTemplate) error {
		t = row
		return nil
	}, func(facts []store.CouponFact) error {
		for _, f := range facts {
			rows[f.UserID] = f
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	if headers, err = r.gate.Headers(ctx, []reward.TemplateID{id}); err != nil {
		return false, err
	}
	h := headers[0]
	still := h.Loaded && h.Version == t.Version && before.Version == t.Version
	if !h.Loaded || h.Generation != t.Generation {
		return true, nil
	}
	drifts, users := r.differences(&t, h, still, known, rows)
	if len(drifts) == 0 && len(users) == 0 {
		return still, nil
	}
	// What was changed since either was read is in motion, and no drift.
	changes, err := r.rows.CouponChanges(ctx, id, min(first, t.Version), changesMax)
	if err != nil || changes.More {
		return false, err
	}
	for _, f := range changes.Facts {
		delete(users, f.UserID)
	}
	if !still && len(users) == 0 {
		return false, nil
	}
	repaired := false
	if repair && len(drifts)+len(users) > 0 {
		if repaired, err = r.repair(ctx, id, h, users); err != nil {
			return false, err
		}
		if !repaired {
			return false, nil
		}
	}
	for user, f := range users {
		has, gateHas := int64(f.Held), int64(known[user].Held)
		drifts = append(drifts, Drift{
			TemplateID: id, What: "user", UserID: user, Store: &has, Redis: &gateHas,
			Detail: fmt.Sprintf("user %s holds %d coupons of template %s, and the gate says %d", reward.Quote(user), has, id, gateHas),
		})
		if len(drifts) >= driftsMax {
			break
		}
	}
	for i := range drifts {
		drifts[i].Repaired = repaired
	}
	report.Drifts = append(report.Drifts, drifts...)
	return true, nil
}

// holders reads all facts of a gate, and the lowest version it was at meanwhile.
func (r *Reconciler) gateHoldings(ctx context.Context, id reward.TemplateID) (map[string]gate.Holding, int64, error) {
	known := make(map[string]gate.Holding)
	first := int64(-1)
	for cursor := ""; ; {
		facts, next, version, err := r.gate.Holdings(ctx, id, cursor)
		if err != nil {
			return nil, 0, err
		}
		if first < 0 {
			first = version
		}
		for _, f := range facts {
			known[f.UserID] = f
		}
		if cursor = next; cursor == "" {
			return known, first, nil
		}
	}
}

// differences compares what was read. The counters mean something only when
// gate and rows stood still at one version.
func (r *Reconciler) differences(t *reward.CouponTemplate, h gate.Header, still bool, known map[string]gate.Holding, rows map[string]store.CouponFact) ([]Drift, map[string]store.CouponFact) {
	var drifts []Drift
	if still {
		for _, c := range []struct {
			what        string
			rows, redis int64
		}{
			{"total", t.TotalQuantity, h.Total},
			{"count", t.Live, h.Live},
			{"issued_total", t.IssuedTotal, h.IssuedTotal},
			{"settled", t.Settled, h.Settled},
			{"stock", max(t.TotalQuantity-t.Live-h.Waiting, 0), h.PublishedStock},
		} {
			if c.rows != c.redis {
				drifts = append(drifts, Drift{
					TemplateID: t.ID, What: c.what, Store: &c.rows, Redis: &c.redis,
					Detail: fmt.Sprintf("%s of template %s is %d by the rows, and the gate says %d", c.what, t.ID, c.rows, c.redis),
				})
			}
		}
	}
	users := make(map[string]store.CouponFact)
	for user, f := range rows {
		if known[user] != gate.Holding(f) {
			users[user] = f
		}
	}
	for user := range known {
		if _, has := rows[user]; !has {
			users[user] = store.CouponFact{UserID: user}
		}
	}
	return drifts, users
}

// repair writes what the rows say over what the gate does, if nothing has
// moved; it says so.
func (r *Reconciler) repair(ctx context.Context, id reward.TemplateID, h gate.Header, users map[string]store.CouponFact) (bool, error) {
	changes, err := r.rows.CouponChanges(ctx, id, h.Version, changesMax)
	if err != nil || changes.More {
		return false, err
	}
	for _, f := range changes.Facts {
		delete(users, f.UserID)
	}
	facts := holdingsOf(changes.Facts)
	for _, f := range users {
		facts = append(facts, gate.Holding(f))
	}
	result, err := r.gate.Apply(ctx, gate.ApplyParams{
		TemplateID: id, From: h.Version, State: stateOf(&changes.Template), Holdings: facts,
		Done: settledTickets(changes.Template.Generation, changes.Settled), Repair: true,
	})
	return err == nil && !result.Behind && result.Version == changes.Template.Version, ignore(err, gate.ErrNotLoaded)
}
