package gatekeeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// compareTriesMax limits how often the counters of gate and rows are read until both
	// are at one version, and how often a repair of a gate that changes is tried.
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
	parts
	loader   *Loader
	granter  *Granter
	interval time.Duration // between two rounds
}

// ReconcileCommand requests a reconciliation.
type ReconcileCommand struct {
	TemplateID *reward.TemplateID // nil = all active templates
	// Repair overwrites what differs in the gate with the state of the rows.
	Repair bool
}

// Run reconciles, stores the report and returns it.
func (r *Reconciler) Run(ctx context.Context, cmd ReconcileCommand) (store.ReconciliationReport, error) {
	var ids []reward.TemplateID
	if cmd.TemplateID != nil {
		if _, err := r.rows.TemplateGet(ctx, *cmd.TemplateID); err != nil {
			return store.ReconciliationReport{}, err
		}
		ids = append(ids, *cmd.TemplateID)
	} else {
		active, err := r.rows.TemplateActive(ctx, time.Now().Add(-r.templates.ClosedRetention))
		if err != nil {
			return store.ReconciliationReport{}, err
		}
		for _, t := range active {
			ids = append(ids, t.ID)
		}
	}
	report := store.ReconciliationReport{ID: r.ids.Next(), Checked: len(ids), Drifts: []store.Drift{}}
	for _, id := range ids {
		if err := (&comparison{r, id, cmd.Repair, &report}).run(ctx); err != nil {
			if cmd.TemplateID != nil || ctx.Err() != nil {
				return store.ReconciliationReport{}, fmt.Errorf("template %s: %w", id, err)
			}
			report.Skipped = append(report.Skipped, fmt.Sprintf("template %s: %v", id, err))
		}
	}
	return report, r.save(ctx, &report)
}

// loggedMax limits the drifts of one report that the log has; the report has all of them.
const loggedMax = 20

func (r *Reconciler) save(ctx context.Context, report *store.ReconciliationReport) error {
	report.At = time.Now().UTC()
	for i, d := range report.Drifts {
		if i == loggedMax {
			r.log.Warn("more coupon drifts found", fmt.Errorf("%d more are in the report", len(report.Drifts)-i), "reconciliation_id", report.ID)
			break
		}
		r.log.Warn("coupon drift found", errors.New(d.Detail), "template_id", d.TemplateID, "what", d.What, "repaired", d.Repaired)
	}
	row, err := report.Row()
	if err != nil {
		return err
	}
	return r.rows.ReconciliationSave(ctx, row)
}

// RunRounds reconciles and repairs in rounds while this instance holds the lease, until
// ctx ends. A round compares the templates that have changed since the last one,
// and all templates every compareAllEvery rounds. Drifts are stored as a report.
func (r *Reconciler) RunRounds(ctx context.Context) {
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
	report := store.ReconciliationReport{ID: r.ids.Next(), Drifts: []store.Drift{}}
	var errs []error
	active := make(map[reward.TemplateID]bool)
	for _, t := range r.templates.Active() {
		active[t.ID] = true
		if version, known := compared[t.ID]; ctx.Err() != nil || known && version == t.Version && !all {
			continue
		}
		if err := (&comparison{r, t.ID, true, &report}).run(ctx); err != nil {
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

// comparison adds the drifts of one template to a report, and repairs them if it should.
type comparison struct {
	*Reconciler
	id     reward.TemplateID
	repair bool
	report *store.ReconciliationReport
}

func (c *comparison) run(ctx context.Context) error {
	// The line first: a repair of the counters removes some of those who must not be in it.
	line := &lineComparison{comparison: c}
	for _, step := range []func(context.Context) error{c.recount, line.compare, c.compareCounters, line.finish, c.compareHolders} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) add(drifts ...store.Drift) { c.report.Drifts = append(c.report.Drifts, drifts...) }

// skip reports what was not compared, and why.
func (c *comparison) skip(format string, args ...any) {
	c.report.Skipped = append(c.report.Skipped, fmt.Sprintf(format, args...))
}

// recount compares the counters of a template's row with its coupons, in one
// snapshot.
func (c *comparison) recount(ctx context.Context) error {
	count, err := c.rows.CouponRecount(ctx, c.id)
	if err != nil {
		return err
	}
	for _, n := range []struct {
		what       string
		kept, rows int64
	}{{"live", count.KeptLive, count.Live}, {"issuedTotal", count.KeptIssuedTotal, count.IssuedTotal}} {
		if n.kept != n.rows {
			c.add(store.Drift{
				TemplateID: c.id, What: n.what, Store: &n.rows, Kept: &n.kept,
				Detail: fmt.Sprintf("%s of template %s is stored as %d, but its coupons add up to %d", n.what, c.id, n.kept, n.rows),
			})
		}
	}
	return nil
}

// compareCounters compares the counters and the places of a gate, and the counters that
// it publishes for other systems, with the template's row at the same version.
func (c *comparison) compareCounters(ctx context.Context) error {
	for range compareTriesMax {
		h, err := HeaderOf(ctx, c.gate, c.id)
		if err != nil || !h.Loaded {
			return err // a gate that is not loaded promises nothing
		}
		t, err := c.rows.TemplateGet(ctx, c.id)
		if err != nil || h.Generation != t.Generation {
			return err
		}
		done := h.Version == t.Version
		if done {
			drifts := counterDrifts(&t, h)
			if c.repair && len(drifts) > 0 {
				if done, err = c.repairCounters(ctx, &t, h); err != nil {
					return err
				}
				for i := range drifts {
					drifts[i].Repaired = true
				}
			}
			if done {
				c.add(drifts...)
				return nil
			}
		}
		if !service.Sleep(ctx, compareInterval) {
			return context.Cause(ctx)
		}
	}
	c.skip("template %s kept changing, so its counters were not compared", c.id)
	return nil
}

// repairCounters overwrites the counters and the places of a gate that is at the version
// of a row. It reports whether it did: not if the row or the gate has changed.
func (c *comparison) repairCounters(ctx context.Context, t *reward.CouponTemplate, h gate.Header) (bool, error) {
	switch {
	case h.Grants > t.Grants, t.Mode == reward.ModeSync && h.Granted > t.Granted:
		// The gate takes no grant of the rows any more.
		return true, Ignore(c.loader.reload(ctx, t.ID, math.MaxInt64), ErrNotNow)
	case h.Grants == t.Grants && h.Granted != t.Granted:
		return c.granter.tell(ctx, t)
	}
	result, err := c.gate.Apply(ctx, gate.ApplyParams{TemplateID: t.ID, From: h.Version, State: StateOf(t), Repair: true})
	return err == nil && !result.Behind && result.Version == t.Version, Ignore(err, gate.ErrNotLoaded)
}

// counterDrifts compares the header of a gate with a row of the same version.
func counterDrifts(t *reward.CouponTemplate, h gate.Header) []store.Drift {
	var drifts []store.Drift
	reported := make(map[string]bool)
	granted := t.Granted
	if h.Grants == t.Grants && h.Granted >= h.Used+h.Waiting {
		granted = min(granted, h.Granted) // a shrink takes the free places at the gate first
	}
	for _, c := range []struct {
		what        string
		rows, redis int64
	}{
		{"total", t.LiveMax(), h.Total},
		{"count", t.Live, h.Live},
		{"count", t.Live, h.PublishedCount},
		{"issued_total", t.IssuedTotal, h.IssuedTotal},
		{"issued_total", t.IssuedTotal, h.PublishedIssued},
		{"settled", t.Settled, h.Settled},
		{"granted", granted, h.Granted},
		{"used", t.Used, h.Used},
		{"grants", t.Grants, h.Grants},
		{"stock", max(t.LiveMax()-t.Live-h.Waiting, 0), h.PublishedStock},
	} {
		if c.rows != c.redis && !reported[c.what] {
			reported[c.what] = true
			drifts = append(drifts, store.Drift{
				TemplateID: t.ID, What: c.what, Store: &c.rows, Redis: &c.redis,
				Detail: fmt.Sprintf("%s of template %s is %d by the rows, and %d by the gate", c.what, t.ID, c.rows, c.redis),
			})
		}
	}
	return drifts
}

// errGateReplaced means that the gate was lost or loaded during a comparison.
var errGateReplaced = errors.New("the gate was replaced during the comparison")

// heldBoth is what the rows and the gate say about a user.
type heldBoth struct{ rows, gate gate.Holding }

// compareHolders compares the holdings of a gate with the rows in one pass, page by
// page, so that its memory does not grow with the holders. A user whose coupons changed
// between the reads is left to the next comparison.
func (c *comparison) compareHolders(ctx context.Context) error {
	differ, version, err := c.differentHolders(ctx)
	if errors.Is(err, errGateReplaced) || errors.Is(err, gate.ErrNotLoaded) {
		return nil // a load reads the rows
	}
	if err != nil || len(differ) == 0 {
		return err
	}
	repaired := false
	if c.repair {
		if repaired, err = c.repairHolders(ctx, version, differ); err != nil {
			return err
		}
	}
	named := 0
	for user, d := range differ {
		if named++; named > driftsMax {
			break
		}
		has, gateHas := int64(d.rows.Held), int64(d.gate.Held)
		c.add(store.Drift{
			TemplateID: c.id, What: "user", UserID: user, Store: &has, Redis: &gateHas, Repaired: repaired,
			Detail: fmt.Sprintf("user %s has %d coupons of template %s by the rows, and %d by the gate", reward.Quote(user), has, c.id, gateHas),
		})
	}
	return nil
}

// differentHolders returns at most changesMax users whose holdings differ, and did not
// change before the gate had the version that it also returns.
func (c *comparison) differentHolders(ctx context.Context) (map[string]heldBoth, int64, error) {
	h, err := HeaderOf(ctx, c.gate, c.id)
	if err != nil || !h.Loaded {
		return nil, 0, err
	}
	lowest, matched := h.Version, int64(0)
	differ := make(map[string]heldBoth)
	err = c.rows.CouponSnapshot(ctx, c.id, func(t reward.CouponTemplate) error {
		if t.Generation != h.Generation {
			return errGateReplaced
		}
		lowest = min(lowest, t.Version)
		return nil
	}, func(facts []gate.Holding) error {
		users := make([]string, len(facts))
		for i, f := range facts {
			users[i] = f.UserID
		}
		page, err := c.holdingsOf(ctx, h.Generation, users)
		if err != nil {
			return err
		}
		for i, has := range page.Holdings {
			if has.Held > 0 {
				matched++
			}
			if rows := facts[i]; has != rows && len(differ) < changesMax {
				differ[has.UserID] = heldBoth{rows: rows, gate: has}
			}
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	now, err := c.holdingsOf(ctx, h.Generation, nil)
	if err != nil {
		return nil, 0, err
	}
	changes, err := c.rows.CouponChanges(ctx, c.id, lowest, changesMax)
	if err != nil {
		return nil, 0, err
	}
	if changes.More {
		c.skip("template %s issued more than %d coupons during the comparison, so its holders were not compared", c.id, changesMax)
		return nil, 0, nil
	}
	for _, f := range changes.Holdings {
		delete(differ, f.UserID)
	}
	// The pass went over the rows. More holders than it found, apart from the new ones,
	// have no rows.
	if now.Holders-matched <= int64(len(changes.Holdings)) {
		return differ, now.Version, nil
	}
	return differ, now.Version, c.addHoldersWithoutRows(ctx, differ)
}

// holdingsOf reads holdings of a gate that must have a generation.
func (c *comparison) holdingsOf(ctx context.Context, generation int64, users []string) (gate.HoldingsOfResult, error) {
	page, err := c.gate.HoldingsOf(ctx, c.id, users)
	if err == nil && page.Generation != generation {
		err = errGateReplaced
	}
	return page, err
}

// addHoldersWithoutRows adds the holders of a gate that have no slot by the rows. It
// looks at every holder of the gate, and then at the rows of those who may have none.
func (c *comparison) addHoldersWithoutRows(ctx context.Context, differ map[string]heldBoth) error {
	suspects := make(map[string]gate.Holding)
	first := int64(-1)
	for cursor := ""; ; {
		page, next, version, err := c.gate.Holdings(ctx, c.id, cursor)
		if err != nil {
			return err
		}
		if first < 0 {
			first = version
		}
		for chunk := range slices.Chunk(page, store.BatchMax) {
			users := make([]string, len(chunk))
			for i, f := range chunk {
				users[i] = f.UserID
			}
			outcomes, err := c.rows.IssueOutcomes(ctx, c.id, users)
			if err != nil {
				return err
			}
			for _, f := range chunk {
				o, found := outcomes[f.UserID]
				if (!found || !o.Issued() || o.Coupon.Status == reward.CouponCancelled) && len(suspects) < changesMax {
					suspects[f.UserID] = f
				}
			}
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	err := c.rows.CouponSnapshot(ctx, c.id, func(t reward.CouponTemplate) error {
		first = min(first, t.Version)
		return nil
	}, func(facts []gate.Holding) error {
		for _, f := range facts {
			delete(suspects, f.UserID)
		}
		return nil
	})
	if err != nil {
		return err
	}
	changes, err := c.rows.CouponChanges(ctx, c.id, first, changesMax)
	if err != nil || changes.More {
		return err // the next comparison finds them
	}
	for _, f := range changes.Holdings {
		delete(suspects, f.UserID)
	}
	for user, f := range suspects {
		differ[user] = heldBoth{rows: gate.Holding{UserID: user}, gate: f}
	}
	return nil
}

// repairHolders overwrites the gate, which has at least the given version, with the state of
// the rows and the holdings that differ, except those of users who have changed since.
// It reports whether it did: not if the gate kept changing.
func (c *comparison) repairHolders(ctx context.Context, version int64, differ map[string]heldBoth) (bool, error) {
	return c.overwrite(ctx, version, func(changes *store.CouponChanges, p *gate.ApplyParams) {
		for _, f := range changes.Holdings {
			delete(differ, f.UserID)
		}
		for _, d := range differ {
			p.Holdings = append(p.Holdings, d.rows)
		}
	})
}

// overwrite overwrites the gate, which has at least the given version, with the state of
// the rows and what changed since, to which add adds. It reports whether it did: not if
// the gate kept changing.
func (c *comparison) overwrite(ctx context.Context, version int64, add func(*store.CouponChanges, *gate.ApplyParams)) (bool, error) {
	for range compareTriesMax {
		changes, err := c.rows.CouponChanges(ctx, c.id, version, changesMax)
		if err != nil || changes.More {
			return false, err
		}
		p := applyOf(version, &changes)
		p.Repair = true
		add(&changes, &p)
		result, err := c.gate.Apply(ctx, p)
		if err != nil {
			return false, Ignore(err, gate.ErrNotLoaded)
		}
		if !result.Behind && result.Version == changes.Template.Version {
			return true, nil
		}
		if !service.Sleep(ctx, compareInterval) {
			return false, context.Cause(ctx)
		}
	}
	return false, nil
}
