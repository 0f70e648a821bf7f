package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// closes sets the closing time of a template.
func closes(seconds int) func(*reward.CouponTemplate) {
	return func(t *reward.CouponTemplate) { t.ClosesAt = at(seconds) }
}

// couponOf returns a request whose coupon has an ID and a code that no other template
// uses.
func couponOf(id reward.TemplateID, user string, ticket int64) rules.CouponRequest {
	n := int64(id)*100 + ticket
	return rules.CouponRequest{UserID: user, Ticket: ticket, CouponID: reward.CouponID(n), Code: fmt.Sprint("code", n)}
}

// archiveTemplate archives a template that is over since before second 50.
func (b *bundle) archiveTemplate(id reward.TemplateID) bool {
	b.Helper()
	return must(b.TemplateArchive(b.ctx, id, at(50), at(1000)))(b)
}

// forgetTemplate removes the rows of a template page by page, and returns how many.
func (b *bundle) forgetTemplate(id reward.TemplateID, limit int) (removed int) {
	b.Helper()
	p := store.TemplateForgetParams{TemplateID: id, Limit: limit}
	for {
		page := must(b.TemplateForget(b.ctx, p))(b)
		if removed += page.Removed; page.Removed > limit {
			b.Fatalf("a page of %d removed %d rows", limit, page.Removed)
		}
		if page.Last == nil {
			return removed
		}
		p.After = *page.Last
	}
}

func (b *bundle) endedTemplates(before, limit int) []reward.TemplateID {
	b.Helper()
	ids := []reward.TemplateID{}
	var last store.EndedTemplate
	for {
		page := must(b.TemplateEnded(b.ctx, at(before), last, limit))(b)
		for _, t := range page {
			last = t
			ids = append(ids, t.ID)
		}
		if len(page) < limit {
			return ids
		}
	}
}

func exerciseTemplateArchive(t *testing.T, open Open) {
	run(t, open, "OnlyWhatIsOver", func(b *bundle) {
		short, over := validFor(5*time.Second), map[reward.TemplateID]bool{5: true, 7: true, 8: true, 14: true}
		for id, change := range map[reward.TemplateID][]func(*reward.CouponTemplate){
			1: {short}, 2: {short, closes(60)}, 3: {closes(20)}, 4: {closes(20), validFor(time.Hour)}, 5: {closes(20), short}, 6: {closes(20), held},
			7: {closes(20)}, 8: {closes(20)}, 9: {closes(20)}, 10: {closes(20)}, 11: {closes(20), short}, 13: {closes(20), short}, 14: {closes(30)},
			15: {closes(20), short},
		} {
			b.template(id, change...)
			r := couponOf(id, "a", 1)
			switch id {
			case 7:
				r.Reason = soldOut
			case 14:
				continue // nobody came
			}
			b.inOrder(id, r)
		}
		b.template(12, draw(-time.Hour, time.Hour), func(t *reward.CouponTemplate) { t.ClosesAt = fromNow(2 * time.Hour) })
		for id, second := range map[reward.CouponID]int{801: 30, 901: 55} {
			must(b.CouponUse(b.ctx, id, at(second)))(b)
		}
		b.cancelCoupon(1001, 55)
		_, granted, err := b.TemplateGrant(b.ctx, store.TemplateGrantParams{ID: 11, Lacking: 1})
		b.must(err)
		same(b, "granted", true, granted)
		b.beginImport(13, 7)
		b.inOrder(15, couponOf(15, "b", 2)) // settled later than the period
		b.must(b.settleAt(15, 55))
		for id := reward.TemplateID(1); id <= 16; id++ {
			before, _ := b.TemplateGet(b.ctx, id)
			if got := b.archiveTemplate(id); got != over[id] {
				b.Errorf("template %d: archived %v, want %v", id, got, over[id])
			}
			if b.archiveTemplate(id) {
				b.Errorf("template %d is archived twice", id)
			}
			if over[id] {
				before.ArchivedAt, before.Generation, before.Epoch = at(1000), before.Generation+1, before.Epoch+1
			}
			after, _ := b.TemplateGet(b.ctx, id)
			same(b, "template", before, after)
		}
		archived := must(b.TemplateArchive(b.ctx, 12, fromNow(3*time.Hour), at(1000)))(b)
		same(b, "archived with an open draw", false, archived)
		same(b, "ended", []reward.TemplateID{3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 14}, b.endedTemplates(50, 2))
		b.must(b.CodesDiscard(b.ctx, 7))
		same(b, "archived after its import", true, b.archiveTemplate(13))
	})
	run(t, open, "RacesWithItsChanges", func(b *bundle) {
		for id := reward.TemplateID(1); id <= 20; id++ {
			b.template(id, closes(20), validFor(5*time.Second))
			b.inOrder(id, couponOf(id, "a", 1))
			var archived bool
			var res store.CouponSettleResult
			var errs [3]error
			later := at(5000)
			change := func() { _, errs[1] = b.TemplateChange(b.ctx, rules.TemplateChange{ID: id, ClosesAt: &later}) }
			if id%2 == 0 {
				change = func() {
					res, errs[1] = b.CouponSettle(b.ctx, store.CouponSettleParams{
						TemplateID: id, Kind: rules.SettleListed, Requests: []rules.CouponRequest{couponOf(id, "b", 2)}, Now: at(60),
					})
				}
			}
			var both sync.WaitGroup
			both.Go(func() { archived, errs[0] = b.TemplateArchive(b.ctx, id, at(50), at(1000)) })
			both.Go(change)
			both.Wait()
			b.must(errs[0])
			refused := res.Refused == rules.RefusedArchived || reward.HasCode(errs[1], reward.CodeArchived)
			if !refused {
				b.must(errs[1])
			}
			if refused != archived {
				b.Fatalf("template %d: archived %v, and the change was refused: %v", id, archived, refused)
			}
			if n := int64(len(b.coupons(id))); n != b.stands(id).IssuedTotal {
				b.Fatalf("template %d has %d coupons and counts %d", id, n, b.stands(id).IssuedTotal)
			}
		}
	})
}

// settleAt settles a ticket of a template at a second.
func (b *bundle) settleAt(id reward.TemplateID, second int) error {
	_, err := b.CouponSettle(b.ctx, store.CouponSettleParams{
		TemplateID: id, Kind: rules.SettleListed, Requests: []rules.CouponRequest{couponOf(id, "c", 3)}, Now: at(second),
	})
	return err
}

// rulesOfTemplateArchive archives a template, tries everything that would change it, and
// removes its rows. The counts stay, and so do the rows of another template.
func rulesOfTemplateArchive(a *arena) {
	for id := reward.TemplateID(1); id <= 2; id++ {
		a.template(id, closes(20), validFor(5*time.Second), quantity(5))
		a.imports(id, int64(id), fmt.Sprint(id, "a"), fmt.Sprint(id, "b"), fmt.Sprint(id, "c"), fmt.Sprint(id, "d"), fmt.Sprint(id, "e"))
		rejected := couponOf(id, "c", 3)
		rejected.Reason = soldOut
		a.inOrder(id, couponOf(id, "a", 1), couponOf(id, "b", 2), rejected)
		a.must(a.RefusalRecord(a.ctx, id, reward.CodeClosed, at(20)))
		for _, user := range []string{"a", "b", "c"} {
			a.must(a.raw.Exec(fmt.Sprintf(`INSERT INTO coupon_entrants (template_id, user_id) VALUES (%d, '%s')`, id, user)))
		}
	}
	a.imports(1, 3, "1f", "1g", "1h") // the codes of template 2 are between those of template 1
	same(a.bundle, "removed of a template that is not archived", 0, a.forgetTemplate(1, 2))
	if !a.archiveTemplate(1) {
		a.Fatal("the template is not archived")
	}
	stands := a.stands(1)
	for _, removed := range []int{0, 3 + 3 + 5 + 3, 0} {
		if removed > 0 || len(a.coupons(1)) == 0 {
			same(a.bundle, "removed", removed, a.forgetTemplate(1, 2))
		}
		a.changesNothing(1)
		same(a.bundle, "the template", stands, a.stands(1))
		count := must(a.CouponRecount(a.ctx, 1))(a)
		same(a.bundle, "recounted", []int64{2, 2}, []int64{count.Live, count.IssuedTotal})
		same(a.bundle, "stored", []int64{2, 2}, []int64{count.KeptLive, count.KeptIssuedTotal})
		same(a.bundle, "counted", store.CouponCounts{Archived: true, Live: 2}, must(a.CouponCounts(a.ctx, 1))(a))
	}
	_, err := a.CouponGet(a.ctx, 101)
	a.wantCode(err, reward.CodeCouponNotFound)
	same(a.bundle, "ended", []reward.TemplateID{2}, a.endedTemplates(50, 10))
	for table, want := range map[string]int64{
		"coupons": 2, "coupon_rejections": 1, "coupon_entrants": 3, "coupon_codes": 5, "coupon_code_imports": 1, "coupon_refusals": 1,
	} {
		a.query(`SELECT count(*) FROM `+table, func(f *fields) { same(a.bundle, "rows of "+table, want, f.number()) })
	}
	if err := a.raw.Exec(`UPDATE coupon_templates SET live = live + 1 WHERE id = 1`); err == nil {
		a.Fatal("the database lets an archived template change")
	}
	if err := a.raw.Exec(`UPDATE coupon_templates SET archived_at = NULL WHERE id = 1`); err == nil {
		a.Fatal("the database lets the mark be removed")
	}
}

// changesNothing tries everything that would change an archived template.
func (a *arena) changesNothing(id reward.TemplateID) {
	a.Helper()
	t := a.stands(id)
	name, later := "again", at(9000)
	for what, do := range map[string]func() error{
		"change": func() error { _, err := a.TemplateChange(a.ctx, rules.TemplateChange{ID: id, Name: &name}); return err },
		"reopen": func() error {
			_, err := a.TemplateChange(a.ctx, rules.TemplateChange{ID: id, ClosesAt: &later})
			return err
		},
		"touch": func() error { _, err := a.TemplateTouch(a.ctx, id); return err },
		"load":  func() error { _, _, err := a.TemplateNewGeneration(a.ctx, raise(id, -1, 0)); return err },
		"late load": func() error {
			_, _, err := a.TemplateNewGeneration(a.ctx, raise(id, t.Generation-1, 0))
			return err
		},
		"grant": func() error {
			_, _, err := a.TemplateGrant(a.ctx, store.TemplateGrantParams{ID: id, Generation: t.Generation, Grants: t.Grants, Lacking: 1})
			return err
		},
		"shrink": func() error {
			_, _, err := a.TemplateShrink(a.ctx, id, rules.Shrunk{Generation: t.Generation, Grants: t.Grants})
			return err
		},
		"release":    func() error { _, _, err := a.TemplateReleasePlaces(a.ctx, id); return err },
		"floor":      func() error { _, err := a.TemplateSetFloor(a.ctx, id, t.Generation); return err },
		"close draw": func() error { _, err := a.DrawClose(a.ctx, id, t.Epoch); return err },
		"end draw":   func() error { _, err := a.DrawDone(a.ctx, id, t.Epoch, nil); return err },
		"leave": func() error {
			_, err := a.CouponLeave(a.ctx, store.CouponLeaveParams{TemplateID: id, Now: at(60), Leave: rules.Leave{
				UserID: "z", Ticket: 9, Generation: t.Generation, GateGeneration: t.Generation,
			}})
			return err
		},
		"import":  func() error { return a.CodesBegin(a.ctx, id, 99, at(60)) },
		"publish": func() error { _, err := a.CodesPublish(a.ctx, id, 99, 1, 0); return err },
		"refusal": func() error { return a.RefusalRecord(a.ctx, id, reward.CodeSoldOut, at(60)) },
	} {
		if err := do(); !reward.HasCode(err, reward.CodeArchived) {
			a.Errorf("%s: %v, want code ARCHIVED", what, err)
		}
	}
	for _, kind := range []rules.SettleKind{rules.SettleInOrder, rules.SettleListed, rules.SettleDirect} {
		p := store.CouponSettleParams{
			TemplateID: id, Kind: kind, Epoch: t.Epoch, Generation: t.Generation, Path: t.Path, Now: at(60),
			Requests: []rules.CouponRequest{couponOf(id, "a", t.Settled+1)}, Offsets: []store.Offset{{Topic: "log", Next: 5}},
		}
		p.Requests[0].Generation = t.Generation
		same(a.bundle, "refused", rules.RefusedArchived, a.settle(p).Refused)
	}
	offsets := must(a.OffsetsGet(a.ctx, "log"))(a)
	same(a.bundle, "offsets", 0, len(offsets))
	epochs := must(a.TemplateAssign(a.ctx, []reward.TemplateID{id, id + 1}, "i1"))(a)
	same(a.bundle, "assigned", 1, len(epochs))
	_, takes, err := a.EntrantSave(a.ctx, id, []string{"z"})
	a.must(err)
	same(a.bundle, "takes entrants", false, takes)
	if _, n, err := a.CouponEndHolds(a.ctx, id, 10); err != nil || n != 0 {
		a.Errorf("%d holds ended, %v", n, err)
	}
	for _, c := range a.coupons(id) {
		_, err := a.CouponUse(a.ctx, c.ID, at(60))
		a.wantCode(err, reward.CodeCouponExpired)
		_, err = cancelOne(a.ctx, a.Tables, c.ID, at(60))
		a.wantCode(err, reward.CodeCouponExpired)
	}
}
