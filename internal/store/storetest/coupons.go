package storetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// stock returns a STREAM template with a hundred coupons, one per user, as a
// caller creates it. change modifies it.
func stock(id reward.TemplateID, change ...func(*reward.CouponTemplate)) reward.CouponTemplate {
	t := reward.CouponTemplate{
		ID: id, Name: "spring", TotalQuantity: 100, PerUserLimit: 1, Mode: reward.ModeStream, WhenRedisAway: reward.FallbackDatabase,
		CreatedAt: epoch,
	}
	for _, c := range change {
		c(&t)
	}
	return t
}

// template creates a template.
func (b *bundle) template(id reward.TemplateID, change ...func(*reward.CouponTemplate)) reward.CouponTemplate {
	b.Helper()
	return must(b.TemplateCreate(b.ctx, stock(id, change...)))(b)
}

// codeNames returns n codes.
func codeNames(n int) []string {
	codes := make([]string, n)
	for i := range codes {
		codes[i] = fmt.Sprint("CODE-", i)
	}
	return codes
}

func quantity(n int64) func(*reward.CouponTemplate) {
	return func(t *reward.CouponTemplate) { t.TotalQuantity = n }
}

func limit(n int) func(*reward.CouponTemplate) {
	return func(t *reward.CouponTemplate) { t.PerUserLimit = n }
}

func inSync(t *reward.CouponTemplate) { t.Mode = reward.ModeSync }

func reissue(t *reward.CouponTemplate) { t.ReissueAfterCancel = true }

func validFor(d time.Duration) func(*reward.CouponTemplate) {
	return func(t *reward.CouponTemplate) { t.ValidFor = d }
}

// window sets the opening and closing time relative to the present. The
// database uses the clock of this machine.
func window(opens, closes time.Duration) func(*reward.CouponTemplate) {
	return func(t *reward.CouponTemplate) { t.OpensAt, t.ClosesAt = fromNow(opens), fromNow(closes) }
}

func fromNow(d time.Duration) time.Time { return time.Now().UTC().Truncate(time.Microsecond).Add(d) }

// stands reads a template.
func (b *bundle) stands(id reward.TemplateID) reward.CouponTemplate {
	b.Helper()
	return must(b.TemplateGet(b.ctx, id))(b)
}

// ask returns the request of a user with a ticket of generation 0. The ID of
// its coupon follows from the ticket.
func ask(user string, ticket int64) rules.CouponRequest {
	return rules.CouponRequest{UserID: user, Ticket: ticket, CouponID: reward.CouponID(ticket), Code: fmt.Sprintf("code%d", ticket)}
}

// asks returns requests of users with consecutive tickets from first on.
func asks(first int64, users ...string) []rules.CouponRequest {
	list := make([]rules.CouponRequest, len(users))
	for i, u := range users {
		list[i] = ask(u, first+int64(i))
	}
	return list
}

// crowd returns user IDs from "u<first>" on.
func crowd(first, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("u%d", first+i)
	}
	return list
}

// inOrder settles requests of a template with epoch 0 and generation 0.
func (b *bundle) inOrder(id reward.TemplateID, list ...rules.CouponRequest) store.CouponSettleResult {
	b.Helper()
	return b.settle(store.CouponSettleParams{TemplateID: id, Kind: rules.SettleInOrder, Requests: list})
}

// settle settles requests at second 10, and checks what must hold after every
// settlement.
func (b *bundle) settle(p store.CouponSettleParams) store.CouponSettleResult {
	b.Helper()
	p.Now = at(10)
	before := b.stands(p.TemplateID)
	if before.Version%2 == 0 { // both ways to decide a batch
		p.Known = &before
	}
	res := must(b.CouponSettle(b.ctx, p))(b)
	same(b, "template afterwards", b.stands(p.TemplateID), res.Template)
	same(b, "from", before.Version, res.From)
	same(b, "to", res.Template.Version, res.To)
	if res.Refused != rules.NotRefused {
		same(b, "results of what was refused", 0, len(res.Results))
		same(b, "template after a refusal", before, res.Template)
		return res
	}
	same(b, "results", len(p.Requests), len(res.Results))
	want := before.Version
	if changes(p.Kind, res) || p.Kind == rules.SettleInOrder && res.Template.Settled > before.Settled {
		want++
	}
	same(b, "version", want, res.To)
	b.couponBooks(p.TemplateID)
	facts := b.holders(p.TemplateID)
	for _, f := range res.Holdings {
		same(b, "fact of "+f.UserID, facts[f.UserID], f)
	}
	for i, r := range res.Results {
		if r.Outcome != rules.RequestIssued {
			continue
		}
		same(b, "issued, as it is kept", b.coupon(p.Requests[i].CouponID), r.Coupon)
		if !slices.ContainsFunc(res.Holdings, func(f store.CouponHolding) bool { return f.UserID == r.Coupon.UserID }) {
			b.Fatalf("there is no fact of %s", r.Coupon.UserID)
		}
	}
	return res
}

// changes says whether a settle changed what the gate has to know.
func changes(kind rules.SettleKind, res store.CouponSettleResult) bool {
	return slices.ContainsFunc(res.Results, func(r store.RequestResult) bool {
		return r.Outcome == rules.RequestIssued || r.Outcome == rules.RequestRejected && kind != rules.SettleDirect
	})
}

func (b *bundle) cancelCoupon(id reward.CouponID, second int) {
	b.Helper()
	must(cancelOne(b.ctx, b.Tables, id, at(second)))(b)
}

// cancelOne cancels a coupon, or returns why it cannot be cancelled.
func cancelOne(ctx context.Context, t *rows.Tables, id reward.CouponID, now time.Time) (store.CouponCancelResult, error) {
	c, err := t.CouponGet(ctx, id)
	if err != nil {
		return store.CouponCancelResult{}, err
	}
	r, err := t.CouponCancel(ctx, store.CouponCancelParams{TemplateID: c.TemplateID, IDs: []reward.CouponID{id}, By: "ann", Now: now})
	return r, cmp.Or(err, r.Refused[id])
}

func (b *bundle) changeTemplate(c rules.TemplateChange) {
	b.Helper()
	must(b.TemplateChange(b.ctx, c))(b)
}

func (b *bundle) coupon(id reward.CouponID) reward.Coupon {
	b.Helper()
	return must(b.CouponGet(b.ctx, id))(b)
}

// told returns the results in short: "issued", the reason of a rejection, or
// the name of another outcome.
func told(res store.CouponSettleResult) []string {
	list := make([]string, len(res.Results))
	for i, r := range res.Results {
		list[i] = [...]string{"issued", r.Reason, "before", "gap", "not open", "closed", "never given"}[r.Outcome]
	}
	return list
}

// holders reads the holdings of all users with a slot, from a snapshot.
func (b *bundle) holders(id reward.TemplateID) map[string]store.CouponHolding {
	b.Helper()
	_, facts, err := b.snapshot(id)
	b.must(err)
	return facts
}

func (b *bundle) snapshot(id reward.TemplateID) (t reward.CouponTemplate, facts map[string]store.CouponHolding, err error) {
	facts = make(map[string]store.CouponHolding)
	last := ""
	err = b.CouponSnapshot(b.ctx, id, func(read reward.CouponTemplate) error {
		t = read
		return nil
	}, func(portion []store.CouponHolding) error {
		if t.ID != id || len(portion) == 0 || len(portion) > store.BatchMax {
			return fmt.Errorf("a portion of %d facts of template %d", len(portion), t.ID)
		}
		for _, f := range portion {
			if f.UserID <= last {
				return fmt.Errorf("%q comes behind %q", f.UserID, last)
			}
			last = f.UserID
			facts[f.UserID] = f
		}
		return nil
	})
	return t, facts, err
}

// coupons reads every coupon of a template.
func (b *bundle) coupons(id reward.TemplateID) []reward.Coupon {
	b.Helper()
	return must(b.CouponList(b.ctx, store.CouponListParams{TemplateID: id, Limit: plenty}))(b)
}

// couponBooks fails the test unless the stored counts of a template match its
// rows and no limit is exceeded.
func (b *bundle) couponBooks(id reward.TemplateID) {
	b.Helper()
	t := b.stands(id)
	var want store.CouponCount
	tickets := make(map[store.SettledRequest]bool)
	for _, c := range b.coupons(id) {
		want.IssuedTotal++
		if c.Status != reward.CouponCancelled {
			want.Live++
		}
		if c.Ticket > t.Settled {
			b.Fatalf("ticket %d is above the settled %d", c.Ticket, t.Settled)
		}
		tickets[store.SettledRequest{Generation: c.Generation, Ticket: c.Ticket}] = true
	}
	for _, f := range b.holders(id) {
		want.Slots += int64(f.Held)
	}
	got := must(b.CouponRecount(b.ctx, id))(b)
	same(b, "kept, against the rows", want, store.CouponCount{Live: t.Live, IssuedTotal: t.IssuedTotal, Slots: want.Slots})
	want.KeptLive, want.KeptIssuedTotal = t.Live, t.IssuedTotal
	same(b, "recounted, against the rows", want, got)
	if t.Live > t.TotalQuantity {
		b.Fatalf("%d of %d are live", t.Live, t.TotalQuantity)
	}
	all := must(b.CouponChanges(b.ctx, id, -1, plenty))(b)
	same(b, "template", t, all.Template)
	seen := make(map[store.SettledRequest]bool)
	for _, a := range all.Settled {
		seen[store.SettledRequest{Generation: a.Generation, Ticket: a.Ticket}] = true
	}
	same(b, "tickets that are settled once", len(all.Settled), len(seen))
	for ticket := range tickets {
		if !seen[ticket] {
			b.Fatalf("%+v has a coupon and is not settled", ticket)
		}
	}
}

func exerciseTemplates(t *testing.T, open Open) {
	run(t, open, "CreateTakesNothingOfACourse", func(b *bundle) {
		given := stock(7, reissue, validFor(time.Hour), func(t *reward.CouponTemplate) {
			t.Name = "봄 🌸 'x'"
			t.OpensAt, t.ClosesAt, t.CreatedAt = epoch.Add(time.Minute+1), epoch.Add(time.Hour).In(time.FixedZone("KST", 9*3600)), epoch
			t.Mode, t.WhenRedisAway, t.PerUserLimit = reward.ModeKafka, reward.FallbackWait, 3
			t.Draw = reward.Draw{State: reward.DrawDone, From: epoch, Seed: []byte{0, 1, 255}, List: []byte("x")}
		})
		course := given
		course.Generation, course.Settled, course.Version, course.Live, course.IssuedTotal = 1, 2, 3, 4, 5
		course.Path, course.Epoch, course.Owner, course.Fence = reward.PathDatabase, 6, "x", 7
		course.Base, course.Floor, course.Granted, course.Used, course.Grants = 8, 9, 3, 2, 1
		course.CodesImported = 9
		made := must(b.TemplateCreate(b.ctx, course))(b)
		want := given
		want.OpensAt, want.ClosesAt = epoch.Add(time.Minute), epoch.Add(time.Hour)
		want.Draw.State, want.Draw.List = reward.DrawOpen, nil
		want.Path = reward.PathGate
		same(b, "made", want, made)
		same(b, "read", want, b.stands(7))
		_, err := b.TemplateCreate(b.ctx, given)
		b.wantCode(err, reward.CodeExists)
		plain := stock(8, func(t *reward.CouponTemplate) { t.Draw.Seed = []byte("x") })
		made = must(b.TemplateCreate(b.ctx, plain))(b)
		plain.Draw, plain.Path = reward.Draw{}, reward.PathGate
		same(b, "without a draw", plain, made)
		same(b, "without a draw, read", plain, b.stands(8))
	})
	run(t, open, "CreateRefusesWhatBreaksARule", func(b *bundle) {
		for name, change := range map[string]func(*reward.CouponTemplate){
			"id":            func(t *reward.CouponTemplate) { t.ID = 0 },
			"name":          func(t *reward.CouponTemplate) { t.Name = "a\x00b" },
			"quantity":      quantity(0),
			"limit":         limit(0),
			"mode":          func(t *reward.CouponTemplate) { t.Mode = "FAX" },
			"redis away":    func(t *reward.CouponTemplate) { t.WhenRedisAway = "" },
			"window":        window(time.Hour, time.Minute),
			"valid for":     validFor(time.Millisecond),
			"draw unopened": func(t *reward.CouponTemplate) { t.Draw.State = reward.DrawOpen },
		} {
			if _, err := b.TemplateCreate(b.ctx, stock(1, change)); !reward.HasCode(err, reward.CodeInvalid) {
				b.Errorf("%s: %v", name, err)
			}
		}
		list := must(b.TemplateList(b.ctx, 0, 10))(b)
		same(b, "templates", 0, len(list))
	})
	run(t, open, "WhatIsNotThereIsSaid", func(b *bundle) {
		b.template(1)
		for name, call := range map[string]func() error{
			"get":        func() error { _, err := b.TemplateGet(b.ctx, 9); return err },
			"change":     func() error { _, err := b.TemplateChange(b.ctx, rules.TemplateChange{ID: 9}); return err },
			"touch":      func() error { _, err := b.TemplateTouch(b.ctx, 9); return err },
			"raise":      func() error { _, _, err := b.TemplateNewGeneration(b.ctx, raise(9, -1, 0)); return err },
			"grant":      func() error { _, _, err := b.TemplateGrant(b.ctx, store.TemplateGrantParams{ID: 9}); return err },
			"shrink":     func() error { _, _, err := b.TemplateShrink(b.ctx, 9, rules.Shrunk{}); return err },
			"release":    func() error { _, _, err := b.TemplateReleasePlaces(b.ctx, 9); return err },
			"set floor":  func() error { _, err := b.TemplateSetFloor(b.ctx, 9, 0); return err },
			"leave":      func() error { _, err := b.CouponLeave(b.ctx, store.CouponLeaveParams{TemplateID: 9}); return err },
			"settle":     func() error { _, err := b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 9}); return err },
			"changes":    func() error { _, err := b.CouponChanges(b.ctx, 9, 0, 1); return err },
			"snapshot":   func() error { _, _, err := b.snapshot(9); return err },
			"entrants":   func() error { _, _, err := b.EntrantSave(b.ctx, 9, nil); return err },
			"draw close": func() error { _, err := b.DrawClose(b.ctx, 9, 0); return err },
			"draw done":  func() error { _, err := b.DrawDone(b.ctx, 9, 0, nil); return err },
			"end holds":  func() error { _, _, err := b.CouponEndHolds(b.ctx, 9, 1); return err },
			"refusal":    func() error { return b.RefusalRecord(b.ctx, 9, reward.CodeSoldOut, epoch) },
		} {
			if err := call(); !reward.HasCode(err, reward.CodeTemplateNotFound) {
				b.Errorf("%s: %v", name, err)
			}
		}
		count := must(b.CouponRecount(b.ctx, 9))(b)
		same(b, "counted", store.CouponCount{}, count)
	})
	run(t, open, "ListPagesFromTheNewest", func(b *bundle) {
		for id := reward.TemplateID(1); id <= 5; id++ {
			b.template(id)
		}
		page := func(before reward.TemplateID) []reward.TemplateID {
			b.Helper()
			list := must(b.TemplateList(b.ctx, before, 2))(b)
			return templateIDs(list)
		}
		same(b, "first", []reward.TemplateID{5, 4}, page(0))
		same(b, "second", []reward.TemplateID{3, 2}, page(4))
		same(b, "rest", []reward.TemplateID{1}, page(2))
		same(b, "none", []reward.TemplateID{}, page(1))
	})
	run(t, open, "ActiveAreThoseThatAreNotOver", func(b *bundle) {
		closes := func(t time.Time) func(*reward.CouponTemplate) {
			return func(c *reward.CouponTemplate) { c.ClosesAt = t }
		}
		b.template(4)
		b.template(3, closes(at(10)))
		b.template(2, closes(at(20)))
		b.template(1, closes(at(30)), func(t *reward.CouponTemplate) {
			t.OpensAt, t.Draw = at(5), reward.Draw{State: reward.DrawOpen, From: at(1), Seed: []byte("seed")}
		})
		active := func(closedAfter time.Time) []reward.CouponTemplate {
			b.Helper()
			list := must(b.TemplateActive(b.ctx, closedAfter))(b)
			for _, t := range list {
				same(b, "listed", b.stands(t.ID), t)
			}
			return list
		}
		for range 2 {
			same(b, "all", []reward.TemplateID{1, 2, 3, 4}, templateIDs(active(at(5))))
			same(b, "after 10", []reward.TemplateID{1, 2, 4}, templateIDs(active(at(10))))
			same(b, "after 40", []reward.TemplateID{4}, templateIDs(active(at(40))))
		}
		list := active(at(5))
		list[0].Draw.Seed[0] = 'X'
		list[1].Name = "mine"
		list = append(list[:1], list[2:]...)
		same(b, "mine", 3, len(list))
		same(b, "not changed by a caller", []reward.TemplateID{1, 2, 3, 4}, templateIDs(active(at(5))))
		for _, change := range []func(){
			func() { b.inOrder(4, asks(1, "u1")...) },
			func() { _, err := cancelOne(b.ctx, b.Tables, 1, at(11)); b.must(err) },
			func() { _, err := b.TemplateTouch(b.ctx, 3); b.must(err) },
			func() { _, err := b.TemplateAssign(b.ctx, []reward.TemplateID{2}, "me"); b.must(err) },
			func() { _, _, err := b.TemplateNewGeneration(b.ctx, raise(1, -1, 0)); b.must(err) },
			func() { _, err := b.TemplateSetFloor(b.ctx, 1, 1); b.must(err) },
		} {
			change()
			active(at(5))
		}
	})
	run(t, open, "ChangeChangesWhatIsNamed", func(b *bundle) {
		b.template(1)
		want := b.template(2)
		change := func(p rules.TemplateChange) {
			b.Helper()
			p.ID = 2
			got := must(b.TemplateChange(b.ctx, p))(b)
			want.Version++
			same(b, "changed", want, got)
			same(b, "kept", want, b.stands(2))
		}
		change(rules.TemplateChange{})
		want.Name, want.TotalQuantity = "summer", 5
		change(rules.TemplateChange{Name: new("summer"), TotalQuantity: new(int64(5))})
		want.PerUserLimit, want.ValidFor, want.ReissueAfterCancel = 4, time.Hour, true
		change(rules.TemplateChange{PerUserLimit: new(4), ValidFor: new(time.Hour), ReissueAfterCancel: new(true)})
		want.OpensAt, want.ClosesAt = at(1), at(2)
		change(rules.TemplateChange{OpensAt: new(at(1).Add(1)), ClosesAt: new(at(2))})
		want.OpensAt, want.ClosesAt, want.ValidFor = time.Time{}, time.Time{}, 0
		change(rules.TemplateChange{OpensAt: &time.Time{}, ClosesAt: &time.Time{}, ValidFor: new(time.Duration(0))})
		want.Mode, want.WhenRedisAway = reward.ModeSync, reward.FallbackWait
		change(rules.TemplateChange{Mode: new(reward.ModeSync), WhenRedisAway: new(reward.FallbackWait)})
		other := stock(1)
		other.Path = reward.PathGate
		same(b, "another", other, b.stands(1))
	})
	run(t, open, "ChangeExpectsATag", func(b *bundle) {
		b.template(1)
		tag := rules.TemplateTag(new(b.stands(1)))
		p := rules.TemplateChange{ID: 1, Name: new("tagged"), Tags: []string{"other", tag}}
		must(b.TemplateChange(b.ctx, p))(b)
		_, err := b.TemplateChange(b.ctx, p)
		b.wantCode(err, reward.CodePreconditionFailed)
		same(b, "changed once", "tagged", b.stands(1).Name)
	})
	run(t, open, "AQuantityWaitsForAnotherPerson", func(b *bundle) {
		above := stock(1)
		above.Authors = above.Authors.Add("kim")
		rules.LimitQuantity(&above, 0, 10)
		must(b.TemplateCreate(b.ctx, above))(b)
		stands := func(inForce, waits int64, authors ...string) {
			b.Helper()
			t := b.stands(1)
			same(b, "quantities", []int64{inForce, waits}, []int64{t.TotalQuantity, t.AwaitingQuantity})
			same(b, "authors", authors, t.Authors.Names())
		}
		change := func(p rules.TemplateChange) error {
			p.ID, p.CodesAbove = 1, 10
			_, err := b.TemplateChange(b.ctx, p)
			return err
		}
		stands(10, 100, "kim")
		seen := []string{rules.TemplateTag(new(b.stands(1)))}
		b.must(change(rules.TemplateChange{TotalQuantity: new(int64(200)), By: "bob"}))
		stands(10, 200, "kim", "bob")
		b.wantCode(change(rules.TemplateChange{Approvers: []string{"lee"}, Tags: seen}), reward.CodePreconditionFailed)
		b.wantCode(change(rules.TemplateChange{Approvers: []string{"Bob"}}), reward.CodeSamePerson)
		stands(10, 200, "kim", "bob")
		b.imports(1, 10, codeNames(11)...)
		b.wantCode(change(rules.TemplateChange{Approvers: []string{"lee"}}), reward.CodeCodesExhausted)
		b.imports(1, 11, codeNames(200)[11:]...)
		b.must(change(rules.TemplateChange{Approvers: []string{"lee"}}))
		stands(200, 0, "kim", "bob")
		b.wantCode(change(rules.TemplateChange{Reject: true}), reward.CodeIllegalState)
	})
	run(t, open, "RaisesAndApprovalsAreNeverLost", func(b *bundle) {
		b.template(1, quantity(10))
		var working sync.WaitGroup
		for n := range int64(8) {
			working.Go(func() {
				_, err := b.TemplateChange(b.ctx, rules.TemplateChange{ID: 1, CodesAbove: 10, TotalQuantity: new(100 + n), By: fmt.Sprint("u", n)})
				_, same := b.TemplateChange(b.ctx, rules.TemplateChange{ID: 1, CodesAbove: 10, Approvers: []string{fmt.Sprint("u", n)}})
				if err != nil || !reward.HasCode(same, reward.CodeSamePerson) {
					b.Errorf("raised with %v, approved with %v", err, same)
				}
			})
		}
		working.Wait()
		t := b.stands(1)
		same(b, "in force", int64(10), t.TotalQuantity)
		if t.AwaitingQuantity < 100 || t.AwaitingQuantity > 107 || len(t.Authors.Names()) != 8 || t.Version != 8 {
			b.Errorf("%+v", t)
		}
	})
	run(t, open, "ChangeIsRefusedByARule", func(b *bundle) {
		b.template(1)
		for name, p := range map[string]rules.TemplateChange{
			"name":   {Name: new(" ")},
			"text":   {Name: new("\xff")},
			"total":  {TotalQuantity: new(int64(0))},
			"limit":  {PerUserLimit: new(reward.TemplatePerUserMax + 1)},
			"window": {OpensAt: new(at(2)), ClosesAt: new(at(2))},
			"mode":   {Mode: new(reward.IssueMode("x"))},
			"away":   {WhenRedisAway: new(reward.RedisFallback("x"))},
		} {
			p.ID = 1
			if _, err := b.TemplateChange(b.ctx, p); !reward.HasCode(err, reward.CodeInvalid) {
				b.Errorf("%s: %v", name, err)
			}
		}
		same(b, "version", int64(0), b.stands(1).Version)
	})
	run(t, open, "ChangeIsRefusedByTheCourse", func(b *bundle) {
		b.template(1, quantity(3))
		b.inOrder(1, asks(1, "u1", "u2")...)
		for _, p := range []rules.TemplateChange{
			{ID: 1, TotalQuantity: new(int64(1))}, {ID: 1, Mode: new(reward.ModeKafka)},
		} {
			_, err := b.TemplateChange(b.ctx, p)
			b.wantCode(err, reward.CodeConflict)
		}
		got := must(b.TemplateChange(b.ctx, rules.TemplateChange{
			ID: 1, TotalQuantity: new(int64(2)), Mode: new(reward.ModeStream), OpensAt: new(at(5)),
		}))(b)
		same(b, "version", int64(2), got.Version)
		same(b, "sold out", []string{reward.ReasonSoldOut}, told(b.inOrder(1, ask("u3", 3))))
		got = must(b.TemplateChange(b.ctx, rules.TemplateChange{ID: 1, TotalQuantity: new(int64(3))}))(b)
		same(b, "total", int64(3), got.TotalQuantity)
		same(b, "one more", []string{"issued"}, told(b.inOrder(1, ask("u4", 4))))
	})
	run(t, open, "ALoweredLimitTakesNothingAway", func(b *bundle) {
		b.template(1, limit(3), reissue)
		b.inOrder(1, asks(1, "a", "a", "a", "b", "b")...)
		_, err := cancelOne(b.ctx, b.Tables, 1, at(11)) // user a keeps the slots 2 and 3
		b.must(err)
		b.changeTemplate(rules.TemplateChange{ID: 1, PerUserLimit: new(2)})
		same(b, "at the new limit", []string{reward.ReasonUserLimit, reward.ReasonUserLimit}, told(b.inOrder(1, asks(6, "a", "b")...)))
		b.cancelCoupon(2, 11)
		same(b, "below it", []string{"issued", reward.ReasonUserLimit}, told(b.inOrder(1, asks(8, "a", "a")...)))
	})
	run(t, open, "TouchRaisesTheVersion", func(b *bundle) {
		want := b.template(1)
		want.Version = 1
		got := must(b.TemplateTouch(b.ctx, 1))(b)
		same(b, "touched", want, got)
		same(b, "kept", want, b.stands(1))
	})
	run(t, open, "OwnersHaveEpochs", func(b *bundle) {
		b.template(1)
		b.template(2)
		own := func(owner string, ids ...reward.TemplateID) map[reward.TemplateID]int64 {
			b.Helper()
			return must(b.TemplateAssign(b.ctx, ids, owner))(b)
		}
		same(b, "first", map[reward.TemplateID]int64{1: 1}, own("a", 1))
		same(b, "both, one twice, one that is not there", map[reward.TemplateID]int64{1: 2, 2: 1}, own("b", 2, 1, 9, 1))
		same(b, "again", map[reward.TemplateID]int64{1: 3}, own("b", 1))
		same(b, "none", map[reward.TemplateID]int64{}, own("b"))
		got := b.stands(1)
		same(b, "owner", "b", got.Owner)
		same(b, "epoch", int64(3), got.Epoch)
		same(b, "version", int64(0), got.Version)
		_, err := b.TemplateAssign(b.ctx, []reward.TemplateID{1}, "\xff")
		b.wantCode(err, reward.CodeInvalid)
	})
	run(t, open, "RaiseExpectsTheGeneration", func(b *bundle) {
		b.template(1)
		for _, step := range []struct {
			p    store.TemplateNewGenerationParams
			want int64 // 0 means refused
		}{
			{renumber(1, 9, 0), 0},
			{raise(1, 0, 0), 1},
			{raise(1, 0, 5), 0},
			{raise(1, 2, 0), 0},
			{raise(1, 1, 5), 6},
			{raise(1, -1, 0), 7},
			{raise(1, 7, 7), 8},
			{renumber(1, 8, 0), 9},
			{raise(1, 9, 0), 10},
			{renumber(1, -1, 20), 21},
			{raise(1, -1, 1<<40), 1<<40 + 1},
		} {
			before := b.stands(1)
			step.p.Path = reward.PathDatabase
			if before.Path == reward.PathDatabase {
				step.p.Path = reward.PathGate
			}
			got, raised, err := b.TemplateNewGeneration(b.ctx, step.p)
			b.must(err)
			same(b, "raised", step.want != 0, raised)
			if raised {
				before.Generation, before.Path = step.want, step.p.Path
				if step.p.NewNumbering {
					before.Base = step.want - 1
				}
			}
			same(b, "template", before, got)
			same(b, "kept", before, b.stands(1))
		}
	})
	run(t, open, "TheFloorIsTheGeneration", func(b *bundle) {
		b.template(1)
		_, _, err := b.TemplateNewGeneration(b.ctx, raise(1, -1, 3))
		b.must(err)
		for _, step := range []struct {
			generation int64
			want       bool
		}{
			{3, false}, {4, true}, {5, false}, {4, true},
		} {
			before := b.stands(1)
			set := must(b.TemplateSetFloor(b.ctx, 1, step.generation))(b)
			same(b, "set", step.want, set)
			if set {
				before.Floor = step.generation
			}
			same(b, "kept", before, b.stands(1))
		}
	})
}

func raise(id reward.TemplateID, from, atLeast int64) store.TemplateNewGenerationParams {
	return store.TemplateNewGenerationParams{ID: id, From: from, AtLeast: atLeast, Path: reward.PathGate}
}

// renumber is raise with a new numbering of tickets.
func renumber(id reward.TemplateID, from, atLeast int64) store.TemplateNewGenerationParams {
	p := raise(id, from, atLeast)
	p.NewNumbering = true
	return p
}

func templateIDs(list []reward.CouponTemplate) []reward.TemplateID {
	ids := make([]reward.TemplateID, len(list))
	for i, t := range list {
		ids[i] = t.ID
	}
	return ids
}

// sortedFacts sorts holdings by user.
func sortedFacts(facts map[string]store.CouponHolding) []store.CouponHolding {
	return slices.SortedFunc(maps.Values(facts), func(a, b store.CouponHolding) int { return cmp.Compare(a.UserID, b.UserID) })
}
