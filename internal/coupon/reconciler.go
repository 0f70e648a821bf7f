package coupon

import (
	"context"
	"crypto/rand"
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
	// compareTriesMax limits how often gate and rows are read until both are at one
	// version. A template that issues all the time is compared except for its
	// counters.
	compareTriesMax = 20
	compareInterval = 20 * time.Millisecond
	driftsMax       = 1000 // users named in one report
	// reconcileLease is the lease of the instance that reconciles in rounds.
	reconcileLease = "coupon reconciler"
	// reconcileLeaseTTL is how long the lease of a crashed instance blocks the
	// others.
	reconcileLeaseTTL = 15 * time.Second
	saveTimeout       = 5 * time.Second
	// compareAllEvery is the number of rounds after which unchanged templates are
	// compared, too: someone may have changed the gate manually.
	compareAllEvery = 10
)

// Reconciler compares gates with rows, and the counters of templates with their
// coupons. It reports no false drift while coupons are issued: a difference counts
// only if what it concerns did not change between the version of the gate and that of
// the rows. It is safe for concurrent use.
type Reconciler struct {
	rows      store.Store
	gate      gate.Gate
	templates *TemplateCache
	ids       *service.IDs
	instance  string
	interval  time.Duration // between two rounds
	log       obs.Log
}

// Drift is one difference.
type Drift struct {
	TemplateID reward.TemplateID `json:"templateId,string"`
	// What names the difference: "live" or "issuedTotal" (Kept, the counters of the
	// template's row, against Store, its coupons), "total", "stock", "count",
	// "issued_total", "settled" (Redis, the gate, against Store, the template's row),
	// "user" (the number of UserID's coupons, in Redis against Store).
	What     string `json:"what"`
	UserID   string `json:"userId,omitempty"`
	Store    *int64 `json:"store"`
	Redis    *int64 `json:"redis"`
	Kept     *int64 `json:"kept,omitempty"`
	Detail   string `json:"detail"`
	Repaired bool   `json:"repaired"`
}

// Reconciliation is the report of a reconciliation.
type Reconciliation struct {
	ID      int64     `json:"id,string"`
	Checked int       `json:"checked"` // number of templates
	Drifts  []Drift   `json:"drifts"`
	Skipped []string  `json:"skipped,omitempty"` // what was not compared, and why
	At      time.Time `json:"at"`
}

// ReconcileCommand requests a reconciliation.
type ReconcileCommand struct {
	TemplateID *reward.TemplateID // nil = all active templates
	// Repair overwrites what differs in the gate with the state of the rows.
	Repair bool
}

// Run reconciles, stores the report and returns it.
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

// save stores a report and logs its drifts.
func (r *Reconciler) save(ctx context.Context, report *Reconciliation) error {
	report.At = time.Now().UTC()
	for _, d := range report.Drifts {
		r.log.Warn("coupon drift found", errors.New(d.Detail), "template_id", d.TemplateID, "what", d.What, "repaired", d.Repaired)
	}
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	return r.rows.ReconciliationSave(ctx, store.Reconciliation{ID: report.ID, Report: text, At: report.At})
}

// run reconciles and repairs in rounds while this instance holds the lease, until
// ctx ends. A round compares the templates that have changed since the last one,
// and all templates every compareAllEvery rounds. Drifts are stored as a report.
func (r *Reconciler) run(ctx context.Context) {
	compared := make(map[reward.TemplateID]int64)
	n := 0
	report := r.log.Streak("reconciling coupons failed", "")
	store.Lead(ctx, store.LeadParams{
		Rows:  r.rows,
		Lease: store.LeaseTakeParams{Name: reconcileLease, Owner: r.instance + "/" + rand.Text()[:8], TTL: reconcileLeaseTTL},
		Lead: func(ctx context.Context) {
			for service.Sleep(ctx, service.Jitter(r.interval, 0.2)) {
				n++
				if err := r.round(ctx, compared, n%compareAllEvery == 0); ctx.Err() == nil {
					report(err)
				}
			}
		},
		Log: r.log,
	})
}

// round compares templates. compared holds the version of each template at its
// last comparison.
func (r *Reconciler) round(ctx context.Context, compared map[reward.TemplateID]int64, all bool) error {
	report := Reconciliation{ID: r.ids.Next(), Drifts: []Drift{}}
	var errs []error
	active := make(map[reward.TemplateID]bool)
	for _, t := range r.templates.active() {
		active[t.ID] = true
		if version, known := compared[t.ID]; ctx.Err() != nil || known && version == t.Version && !all {
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
		// Store what was repaired even if the lease is lost by now.
		saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
		defer cancel()
		errs = append(errs, r.save(saving, &report))
	}
	return errors.Join(errs...)
}

// compare adds the drifts of one template to the report.
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
	report.Skipped = append(report.Skipped, fmt.Sprintf("template %s kept changing, so its counters were not compared", id))
	return nil
}

// recount compares the counters of a template's row with its coupons, in one
// snapshot.
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
				Detail: fmt.Sprintf("%s of template %s is stored as %d, but its coupons add up to %d", c.what, id, c.kept, c.rows),
			})
		}
	}
	return nil
}

// compareOnce compares a gate with rows. It reports false if they changed in the
// meantime, so that the caller must try again.
func (r *Reconciler) compareOnce(ctx context.Context, id reward.TemplateID, repair bool, report *Reconciliation) (bool, error) {
	headers, err := r.gate.Headers(ctx, []reward.TemplateID{id})
	if err != nil {
		return false, err
	}
	before := headers[0]
	if !before.Exists || !before.Loaded {
		return true, nil // it promises nothing, and the next request loads it from the rows
	}
	known, first, err := r.gateHoldings(ctx, id)
	if err != nil {
		return errors.Is(err, gate.ErrNotLoaded), ignore(err, gate.ErrNotLoaded)
	}
	var t reward.CouponTemplate
	rows := make(map[string]store.CouponHolding, len(known))
	err = r.rows.CouponSnapshot(ctx, id, func(row reward.CouponTemplate) error {
		t = row
		return nil
	}, func(facts []store.CouponHolding) error {
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
	// A change since either was read is no drift.
	changes, err := r.rows.CouponChanges(ctx, id, min(first, t.Version), changesMax)
	if err != nil || changes.More {
		return false, err
	}
	for _, f := range changes.Holdings {
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
			Detail: fmt.Sprintf("user %s has %d coupons of template %s by the rows, and %d by the gate", reward.Quote(user), has, id, gateHas),
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

// gateHoldings reads all holdings of a gate, and the gate's version when it began.
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

// differences compares what was read, and returns the drifts of counters and the
// users whose holdings differ. The counters are comparable only if still is true:
// gate and rows stayed at one version.
func (r *Reconciler) differences(t *reward.CouponTemplate, h gate.Header, still bool, known map[string]gate.Holding, rows map[string]store.CouponHolding) ([]Drift, map[string]store.CouponHolding) {
	var drifts []Drift
	if still {
		for _, c := range []struct {
			what        string
			rows, redis int64
		}{
			{"total", t.LiveMax(), h.Total},
			{"count", t.Live, h.Live},
			{"issued_total", t.IssuedTotal, h.IssuedTotal},
			{"settled", t.Settled, h.Settled},
			{"stock", max(t.LiveMax()-t.Live-h.Waiting, 0), h.PublishedStock},
		} {
			if c.rows != c.redis {
				drifts = append(drifts, Drift{
					TemplateID: t.ID, What: c.what, Store: &c.rows, Redis: &c.redis,
					Detail: fmt.Sprintf("%s of template %s is %d by the rows, and %d by the gate", c.what, t.ID, c.rows, c.redis),
				})
			}
		}
	}
	users := make(map[string]store.CouponHolding)
	for user, f := range rows {
		if known[user] != gate.Holding(f) {
			users[user] = f
		}
	}
	for user := range known {
		if _, has := rows[user]; !has {
			users[user] = store.CouponHolding{UserID: user}
		}
	}
	return drifts, users
}

// repair overwrites the gate with the state of the rows, and reports whether the
// gate is at their version then. users are those whose holdings differ.
func (r *Reconciler) repair(ctx context.Context, id reward.TemplateID, h gate.Header, users map[string]store.CouponHolding) (bool, error) {
	changes, err := r.rows.CouponChanges(ctx, id, h.Version, changesMax)
	if err != nil || changes.More {
		return false, err
	}
	for _, f := range changes.Holdings {
		delete(users, f.UserID)
	}
	facts := holdingsOf(changes.Holdings)
	for _, f := range users {
		facts = append(facts, gate.Holding(f))
	}
	result, err := r.gate.Apply(ctx, gate.ApplyParams{
		TemplateID: id, From: h.Version, State: stateOf(&changes.Template), Holdings: facts,
		Done: settledTickets(changes.Template.Generation, changes.Settled), Repair: true,
	})
	return err == nil && !result.Behind && result.Version == changes.Template.Version, ignore(err, gate.ErrNotLoaded)
}
