package storetest

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// issued is a coupon with the fields that only the store uses.
type issued struct {
	reward.Coupon
	slot    int // 0 means freed
	version int64
}

// rejected is a rejected request.
type rejected struct {
	generation, version int64
	user, reason        string
	at                  time.Time
}

type ticket struct {
	template           reward.TemplateID
	ticket, generation int64
}

// counter has the templates of an arena with their coupons and rejected
// requests.
type counter struct {
	*arena
	templates map[reward.TemplateID]reward.CouponTemplate
	coupons   map[reward.CouponID]issued
	rejected  map[ticket]rejected
	calls     []store.CouponSettleParams
}

func (a *arena) counter() *counter {
	return &counter{
		arena: a, templates: make(map[reward.TemplateID]reward.CouponTemplate), coupons: make(map[reward.CouponID]issued),
		rejected: make(map[ticket]rejected),
	}
}

// open adds a template with stock coupons left, and a call that settles a batch
// of it. If held is 1, user a has a coupon. If it is -1, user a has a cancelled
// coupon that keeps its slot. The ID of that coupon is below those of the batch,
// or above.
func (s *counter) open(kind rules.SettleKind, stock int64, limit, held int) (*reward.CouponTemplate, *store.CouponSettleParams) {
	t := reward.CouponTemplate{
		ID: reward.TemplateID(len(s.templates) + 1), Name: "spring", PerUserLimit: limit, Mode: reward.ModeStream, CreatedAt: at(-3600),
		WhenRedisAway: reward.FallbackDatabase, Path: reward.PathGate, Generation: 1, Epoch: 3, Floor: 1, Fence: 5, Settled: 3, Version: 7,
	}
	if len(s.templates)%2 == 0 {
		t.ValidFor = time.Hour
	}
	if held != 0 {
		c := issued{
			Coupon: reward.Coupon{
				ID: reward.CouponID(int64(t.ID)*100 + int64(t.ID%3)*40), TemplateID: t.ID, UserID: "a", Ticket: 4, IssuedAt: at(-60),
			}, slot: 1 + len(s.templates)/2%limit, version: 7,
		}
		c.Code = fmt.Sprint(c.ID)
		t.IssuedTotal++
		if t.Live++; held < 0 {
			c.Status, c.CancelledAt = reward.CouponCancelled, at(-30)
			t.Live--
		}
		s.coupons[c.ID] = c
	}
	s.rejected[ticket{t.ID, 3, 0}] = rejected{version: 7, user: "z", reason: soldOut, at: at(-30)}
	t.TotalQuantity = max(t.Live+stock, 1)
	t.Grants, t.Used = int64(len(s.templates)%5), int64(len(s.templates)%3)
	t.Granted = t.Used + min(int64(len(s.templates)/3%3), stock)
	if t.Live+stock == 0 { // without stock, some user must have the coupon
		c := issued{Coupon: reward.Coupon{
			ID: reward.CouponID(int64(t.ID)*100 + 99), TemplateID: t.ID, UserID: "y", Ticket: 2, IssuedAt: at(-60),
		}, slot: 1, version: 7}
		c.Code = fmt.Sprint(c.ID)
		s.coupons[c.ID] = c
		t.Live, t.IssuedTotal = 1, t.IssuedTotal+1
	}
	s.templates[t.ID] = t
	s.calls = append(s.calls, store.CouponSettleParams{
		TemplateID: t.ID, Kind: kind, Epoch: t.Epoch, Generation: t.Generation, Path: t.Path, Now: now,
	})
	return &t, &s.calls[len(s.calls)-1]
}

// ask adds a request to a batch. User r stands for user a with a request that
// is rejected already.
func (p *batch) ask(user string, number, generation int64) {
	r := rules.CouponRequest{
		UserID: user, Ticket: number, Generation: generation, CouponID: reward.CouponID(int64(p.TemplateID)*100 + 50 + int64(len(p.Requests))),
	}
	r.Code = fmt.Sprint(r.CouponID)
	if user == "r" {
		r.UserID, r.Reason = "a", reward.ReasonNotDrawn
	}
	p.Requests = append(p.Requests, r)
}

type batch store.CouponSettleParams

// rulesOfIssue settles random batches: what is stored must be what rules.Settle returned.
func rulesOfIssue(a *arena) {
	s := a.counter()
	n := func(below int) int { return a.rnd.IntN(below) }
	users := []string{"a", "b", "r"}
	for i := range 2000 / a.share {
		kind := rules.SettleKind(i % 3)
		t, p := s.open(kind, int64(n(4)), 1+n(3), n(3)-1)
		generations, tickets := 1, 4
		switch kind {
		case rules.SettleInOrder:
			if n(4) == 0 { // who has a ticket was admitted in time
				t.ClosesAt = fromNow(-time.Hour)
			}
			for number := range int64(n(3)) { // users who left, of generation 1 or of another one
				k := ticket{t.ID, 4 + number, int64(1 + n(2))}
				s.rejected[k] = rejected{generation: k.generation, version: 7, user: users[n(2)], reason: reward.ReasonLeft, at: at(-20)}
			}
		case rules.SettleListed:
			// In generation 0, ticket 3 is rejected, and ticket 4 is the coupon of the user
			// who holds one. Generation 2 is in the future.
			generations, tickets = 3, 2
			t.Settled, t.Floor = t.Settled+int64(n(2)), int64(n(2))
		case rules.SettleDirect:
			t.Mode, p.Fence = reward.ModeSync, 6
		}
		s.templates[t.ID] = *t
		for range 1 + n(4) {
			generation := 1
			if generations > 1 {
				generation = n(generations)
			}
			(*batch)(p).ask(users[n(3)], 3+int64(n(tickets)), int64(generation)) // 3 is settled
		}
	}
	s.settle()
}

// settle writes the templates, makes the calls, and compares the results.
func (s *counter) settle() {
	s.put()
	for i, p := range s.calls {
		if known := s.templates[p.TemplateID]; i%2 == 0 {
			p.Known = &known
		}
		got := must(s.CouponSettle(s.ctx, p))(s)
		want := s.settled(p)
		if !cmp.Equal(want, got) {
			s.errorf("%+v: result (-want +got):\n%s", p, cmp.Diff(want, got))
		}
	}
	s.stand("settled")
}

// settled applies the rules to a batch.
func (s *counter) settled(p store.CouponSettleParams) store.CouponSettleResult {
	t := s.templates[p.TemplateID]
	b := p.Batch()
	f := rules.Facts{
		Clock: time.Now(), Known: make(map[int]bool), Left: make(map[int]bool), Holdings: s.holdings(t.ID), Existing: make(map[string]reward.Coupon),
	}
	for at, r := range b.Requests {
		j, rejected := s.rejected[ticket{t.ID, r.Ticket, r.Generation}]
		f.Known[at], f.Left[at] = rejected, p.Kind == rules.SettleInOrder && j.reason == reward.ReasonLeft
		for id := reward.CouponID(int64(t.ID) * 100); id < reward.CouponID(int64(t.ID+1)*100); id++ {
			c, ok := s.coupons[id]
			f.Known[at] = f.Known[at] || ok && (c.Ticket == r.Ticket && c.Generation == r.Generation || c.UserID == r.UserID && c.Generation > r.Generation)
		}
	}
	for user, h := range f.Holdings {
		if h.Latest != 0 {
			f.Existing[user] = s.coupons[h.Latest].Coupon
		}
	}
	done := b.Settle(t, f)
	for _, d := range done.Decisions {
		r := b.Requests[d.At].Storable()
		switch {
		case d.Reason == reward.ReasonLeft:
		case d.Reason == "":
			s.coupons[r.CouponID] = issued{b.Coupon(&done.Template, d), d.Slot, done.Template.Version}
		case p.Kind != rules.SettleDirect:
			s.rejected[ticket{t.ID, d.Ticket, r.Generation}] = rejected{r.Generation, done.Template.Version, r.UserID, d.Reason, now}
		}
	}
	s.templates[t.ID] = done.Template
	return store.Settled(&done, b, f.Existing)
}

// holdings returns the holdings of the users at a template.
func (s *counter) holdings(id reward.TemplateID) map[string]rules.Holding {
	holdings := make(map[string]rules.Holding)
	for n := range reward.CouponID(100) {
		c, ok := s.coupons[reward.CouponID(id)*100+n]
		if !ok || c.slot == 0 {
			continue
		}
		h := holdings[c.UserID]
		h.Slots = append(h.Slots, c.slot)
		if c.Status != reward.CouponCancelled {
			h.Latest = max(h.Latest, c.ID)
		}
		holdings[c.UserID] = h
	}
	return holdings
}

func (s *counter) put() {
	s.Helper()
	var rows [][]any
	for _, t := range s.templates {
		rows = append(rows, []any{
			t.ID, t.Name, t.TotalQuantity, t.PerUserLimit, s.moment(t.OpensAt), s.moment(t.ClosesAt), int64(t.ValidFor / time.Second), string(t.Mode),
			t.ReissueAfterCancel, string(t.WhenRedisAway), "", s.moment(t.CreatedAt), t.Generation, t.Settled, t.Version, t.Live, t.IssuedTotal,
			t.Epoch, t.Fence, t.Base, t.Floor, t.Granted, t.Used, t.Grants, string(t.Path), s.moment(t.ArchivedAt),
		})
	}
	s.insert(`coupon_templates (id, name, total_quantity, per_user_limit, opens_at, closes_at, valid_for, mode, reissue, when_redis_away,
draw_state, created_at, generation, settled, version, live, issued_total, epoch, fence, base, floor, granted, used, grants, path, archived_at)`, rows)
	rows = rows[:0]
	for _, c := range s.coupons {
		rows = append(rows, []any{
			c.ID, c.Code, c.TemplateID, c.UserID, c.Generation, c.Ticket, int16(c.Status), s.moment(c.IssuedAt), s.moment(c.CancelledAt),
			s.moment(c.ExpiresAt), c.slot, c.version,
		})
	}
	s.insert(`coupons (id, code, template_id, user_id, generation, ticket, status, issued_at, cancelled_at, expires_at, slot, version)`, rows)
	rows = rows[:0]
	for k, r := range s.rejected {
		rows = append(rows, []any{k.template, k.ticket, k.generation, r.user, r.reason, s.moment(r.at), r.version})
	}
	s.insert(`coupon_rejections (template_id, ticket, generation, user_id, reason, at, version)`, rows)
	s.stand("before the test")
}

// stand fails the test unless templates, coupons and rejected requests are
// those of the rules.
func (s *counter) stand(when string) {
	s.Helper()
	coupons := make(map[reward.CouponID]issued, len(s.coupons))
	s.query(`SELECT id, code, template_id, user_id, generation, ticket, status, micros(issued_at), micros(cancelled_at), micros(expires_at),
coalesce(slot, 0), version FROM coupons`, func(f *fields) {
		var c issued
		c.ID, c.Code, c.TemplateID, c.UserID = reward.CouponID(f.number()), f.text(), reward.TemplateID(f.number()), f.text()
		c.Generation, c.Ticket, c.Status = f.number(), f.number(), reward.CouponStatus(f.number()) //nolint:gosec // small
		c.IssuedAt, c.CancelledAt, c.ExpiresAt = f.moment(), f.moment(), f.moment()
		c.slot, c.version = int(f.number()), f.number()
		coupons[c.ID] = c
	})
	compare(s.arena, when+": coupon", s.coupons, coupons)
	refused := make(map[ticket]rejected, len(s.rejected))
	s.query(`SELECT template_id, ticket, generation, user_id, reason, micros(at), version FROM coupon_rejections`, func(f *fields) {
		k := ticket{reward.TemplateID(f.number()), f.number(), f.number()}
		refused[k] = rejected{generation: k.generation, user: f.text(), reason: f.text(), at: f.moment(), version: f.number()}
	})
	compare(s.arena, when+": rejected request", s.rejected, refused)
	templates := make(map[reward.TemplateID]reward.CouponTemplate, len(s.templates))
	for before := reward.TemplateID(0); ; {
		list := must(s.TemplateList(s.ctx, before, store.BatchMax))(s)
		for _, t := range list {
			templates[t.ID] = t
		}
		if len(list) < store.BatchMax {
			break
		}
		before = list[len(list)-1].ID
	}
	compare(s.arena, when+": template", s.templates, templates)
}
