package coupon

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// TestAnArchivedTemplateTakesNothing archives a template while an instance maintains its
// gate, removes its rows and its gate, and lets the same user request again. Everything is
// answered with ARCHIVED, a late record becomes a dead letter, and a reconciliation with
// repair finds nothing.
func TestAnArchivedTemplateTakesNothing(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, (*rig).archive)
}

func (r *rig) archive(mode reward.IssueMode) {
	ctx := r.Context()
	i := r.start()
	id := r.create(reward.CouponTemplate{TotalQuantity: 5, Mode: mode})
	c := r.take(i, id, "ann")
	fixture.Must(i.Catalog.Cancel(ctx, c.ID, "ann"))(r)
	fixture.Must(i.Catalog.Close(ctx, id))(r)
	later := time.Now().Add(time.Hour)
	r.until("the template is archived", func() bool {
		row, err := r.rows.TemplateGet(ctx, id)
		if err == nil && row.Promised() > 0 { // the maintainer takes them back later
			_, _, err = r.rows.TemplateShrink(ctx, id, rules.Shrunk{Generation: row.Generation, Grants: row.Grants, Granted: row.Used})
		}
		if err != nil {
			r.Fatal(err)
		}
		return fixture.Must(r.rows.TemplateArchive(ctx, id, later, later))(r)
	})
	fixture.OK(r, i.gate.Remove(ctx, id))
	p := store.TemplateForgetParams{TemplateID: id, Limit: 10}
	for {
		page := fixture.Must(r.rows.TemplateForget(ctx, p))(r)
		if page.Last == nil {
			break
		}
		p.After = *page.Last
	}
	for _, user := range []string{"ann", "bob"} {
		r.until("the instance knows that the template is archived", func() bool {
			_, code := r.request(i, id, user)
			if code != reward.CodeClosed && code != reward.CodeArchived {
				r.Errorf("%s: %q", user, code)
			}
			return code == reward.CodeArchived
		})
		if s, err := i.Intake.Status(ctx, id, user); !reward.HasCode(err, reward.CodeArchived) {
			r.Errorf("%s: %+v, %v", user, s, err)
		}
		if err := i.Intake.Leave(ctx, id, user); !reward.HasCode(err, reward.CodeArchived) {
			r.Errorf("%s leaves: %v", user, err)
		}
	}
	if _, err := i.Catalog.Close(ctx, id); !reward.HasCode(err, reward.CodeArchived) {
		r.Errorf("close: %v", err)
	}
	if report, err := i.Reconciler.Run(ctx, gatekeeper.ReconcileCommand{TemplateID: &id, Repair: true}); err != nil || len(report.Drifts) > 0 {
		r.Errorf("reconciled: %+v, %v", report, err)
	}
	if mode == reward.ModeKafka {
		fixture.OK(r, i.topic.Publish(ctx, id, []gate.Request{{UserID: "ann", Ticket: c.Ticket, Generation: c.Generation}}))
		r.until("the record becomes a dead letter", func() bool {
			list, err := r.rows.DeadLetterList(ctx, store.DeadLetterListParams{Limit: 10})
			return err == nil && len(list) == 1 && list[0].Reason == reward.CodeArchived
		})
	}
	row, err := r.rows.TemplateGet(ctx, id)
	list, listErr := r.rows.CouponList(ctx, store.CouponListParams{TemplateID: id, Limit: 10})
	if err != nil || listErr != nil || row.IssuedTotal != 1 || row.Live != 0 || len(list) != 0 {
		r.Errorf("%+v, %+v, %v, %v", row, list, err, listErr)
	}
}
