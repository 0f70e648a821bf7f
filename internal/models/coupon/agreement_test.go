package coupon

import (
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// The following tests require that the STREAM model changes the rows as internal/rules
// does, in every case of a small template. Both databases do the same, as storetest
// checks.

// template is the row of a state.
func (m *model) template(s *state) reward.CouponTemplate {
	t := reward.CouponTemplate{
		ID: 1, Name: "a", TotalQuantity: int64(s.figures.total), PerUserLimit: int(m.limit), Mode: reward.ModeStream,
		WhenRedisAway: reward.FallbackDatabase, Path: reward.PathGate, Epoch: 1, Generation: int64(s.generation), Settled: int64(s.settled),
		Live: int64(s.live), Granted: int64(s.figures.granted), Used: int64(s.figures.used), Grants: int64(s.figures.grant), Base: int64(s.figures.base),
	}
	if s.bypass {
		t.Path = reward.PathDatabase
	}
	return t
}

// same reports whether a row says what a state says.
func (m *model) same(t *reward.CouponTemplate, s *state) bool {
	want := m.template(s)
	return t.TotalQuantity == want.TotalQuantity && t.Settled == want.Settled && t.Live == want.Live && t.Granted == want.Granted &&
		t.Used == want.Used && t.Grants == want.Grants && t.Base == want.Base
}

// holdings are those of the users of a state.
func (m *model) holdings(s *state) map[string]rules.Holding {
	all := make(map[string]rules.Holding)
	for user := uint8(1); user <= usersMax; user++ {
		h := rules.Holding{}
		for slot := range int(s.holding(user, s.version)) {
			h.Slots = append(h.Slots, slot+1)
		}
		all[letter(user)] = h
	}
	return all
}

// stored reports whether a state has the row of a user who left with a request.
func stored(s *state, e item) bool {
	return s.left[0].ticket == e.ticket && s.left[0].user == e.user && s.left[0].generation == e.generation
}

// cases calls check with small templates of every kind: user A may have a coupon, places
// may be used, promised or free, and the path may be the database's. A check calls pick
// equally often in every case.
func cases(t *testing.T, check func(t *testing.T, m *model, s *state, pick func(n int) uint8)) {
	t.Helper()
	t.Parallel()
	n := 0
	for i := range 1 << 19 {
		rest := i
		pick := func(n int) uint8 { k := rest % n; rest /= n; return uint8(k) } //nolint:gosec // small
		m := &model{options: small(events{eventRequest: 1})}
		m.limit = 1 + pick(2)
		s := m.First()
		s.generation, s.version, s.bypass = 3, 1, pick(2) == 1
		s.figures = figures{total: 1 + pick(3), used: pick(3), grant: 1, base: 1}
		s.figures.granted = s.figures.used + pick(3)
		if s.settled = pick(2); s.settled == 1 {
			s.rows[0] = row{user: 1, generation: 2, outcome: outcomeIssued, inserted: 1}
			s.live = 1
		}
		if int(s.live)+s.figures.promised() > int(s.figures.total) {
			continue
		}
		s.record()
		for user := range s.users {
			s.users[user].asked = true
		}
		if check(t, m, &s, pick); rest > 0 {
			t.Logf("%d cases", n)
			return // every case was seen
		}
		n++
	}
	t.Error("there are more cases")
}

// TestSettlingFollowsTheRules lets an issuer settle one or two requests.
func TestSettlingFollowsTheRules(t *testing.T) {
	cases(t, func(t *testing.T, m *model, s *state, pick func(n int) uint8) {
		t.Helper()
		h := &s.all[0]
		h.issuer, h.owner, h.read = issuerBatch, pick(2) == 1, 3-pick(2)
		h.batch[0] = item{s.settled + pick(3), 1 + pick(2), 2}
		if second := (item{h.batch[0].ticket + 1 + pick(2), 1 + pick(2), 2}); pick(2) == 1 {
			h.batch[1] = second
		}
		if gone := (left{s.settled + 1, h.batch[0].user, 2 + pick(2), 1}); pick(2) == 1 {
			s.left[0] = gone
		}
		if h.batch[0].ticket == 0 {
			return
		}
		m.settle(s, 0)
		next := m.out[0].Next

		was := m.template(s)
		b := rules.IssueBatch{Kind: rules.SettleInOrder, Generation: int64(s.all[0].read)}
		if s.all[0].owner {
			b.Epoch = was.Epoch
		}
		for _, e := range s.all[0].batch {
			if e.ticket != 0 {
				b.Requests = append(b.Requests, rules.CouponRequest{UserID: letter(e.user), Generation: int64(e.generation), Ticket: int64(e.ticket)})
			}
		}
		now := was
		var decided []rules.Decision
		if refused := rules.Refuse(&was, &b); (refused != rules.NotRefused) != (m.out[0].Label.step == settlesNothing) {
			t.Fatalf("%s: internal/rules %v, the model %q", s, refused, m.out[0].Label)
		} else if refused == rules.NotRefused {
			due := rules.Due(&was, &b, nil)
			gone := make(map[int]bool)
			for _, at := range due {
				gone[at] = stored(s, s.all[0].batch[at])
			}
			now, decided = rules.Issue(was, &b, due, gone, m.holdings(s))
		}
		if !m.same(&now, &next) {
			t.Fatalf("%s, batch %v: internal/rules %+v, the model %s", s, s.all[0].batch, now, &next)
		}
		for _, d := range decided {
			reason := map[outcome]string{
				outcomeUserLimit: reward.ReasonUserLimit, outcomeSoldOut: reward.ReasonSoldOut, outcomeLeft: reward.ReasonLeft,
			}[next.rows[d.Ticket-1].outcome]
			if d.Reason != reason {
				t.Fatalf("%s, ticket %d: internal/rules %q, the model %q", s, d.Ticket, d.Reason, reason)
			}
		}
	})
}

// TestIssuingThroughTheRowsFollowsTheRules lets a user request a coupon past the gate.
func TestIssuingThroughTheRowsFollowsTheRules(t *testing.T) {
	cases(t, func(t *testing.T, m *model, s *state, pick func(n int) uint8) {
		t.Helper()
		user := 1 + pick(2)
		was := m.template(s)
		b := rules.IssueBatch{Kind: rules.SettleDirect, Generation: was.Generation, Path: reward.PathDatabase, Requests: []rules.CouponRequest{{UserID: letter(user)}}}
		want := was
		if rules.Refuse(&was, &b) == rules.NotRefused {
			want, _ = rules.Issue(was, &b, []int{0}, nil, m.holdings(s))
		}
		got := *s
		m.pastTheGate(s)
		for _, next := range m.out {
			if next.Label.step == asksRows && next.Label.who == user {
				got = next.Next
			}
		}
		if !m.same(&want, &got) {
			t.Fatalf("%s, user %s: internal/rules %+v, the model %s", s, letter(user), want, &got)
		}
	})
}

// TestLeavingFollowsTheRules lets a user leave the line.
func TestLeavingFollowsTheRules(t *testing.T) {
	cases(t, func(t *testing.T, m *model, s *state, pick func(n int) uint8) {
		t.Helper()
		l := leaver{user: 1 + pick(2), ticket: 1 + pick(3), entry: 2 + pick(2), of: 3 - pick(2)}
		if gone := (left{l.ticket, l.user, 2 + pick(2), 1}); pick(2) == 1 {
			s.left[0] = gone
		}
		s.leaver = l
		was := m.template(s)
		settled := int(s.settled) >= int(l.ticket) && s.rows[l.ticket-1].generation == l.entry
		gone := stored(s, item{l.ticket, l.user, l.entry})
		leave := rules.Leave{
			UserID: letter(l.user), Ticket: int64(l.ticket), Generation: int64(l.entry), GateGeneration: int64(l.of),
		}
		done := leave.Apply(&was, settled || gone, gone) == rules.LeaveDone
		m.leave(s)
		next := m.out[0].Next
		if !m.same(&was, &next) || done != (m.out[0].Label.step == leavesRow) {
			t.Fatalf("%s, %+v: internal/rules %v, %+v, the model %s", s, l, done, was, &next)
		}
	})
}

// TestPlacesFollowTheRules lets the row set places aside and take them back, and an
// operator lower the quantity.
func TestPlacesFollowTheRules(t *testing.T) {
	cases(t, func(t *testing.T, m *model, s *state, pick func(n int) uint8) {
		t.Helper()
		m.grantsAnyTime, m.block = true, 1+pick(3)
		s.may[eventGrant] = 1
		s.gate.generation, s.gate.grant, s.gate.granted = s.generation, s.figures.grant, s.figures.granted-min(s.figures.granted, pick(2))
		was, got := m.template(s), *s
		want := was
		rules.Grant(&want, int64(s.gate.generation), int64(s.gate.grant), int64(s.gate.granted), 1, int64(m.block)-1)
		if m.grant(s); len(m.out) > 0 {
			got = m.out[0].Next
		}
		if !m.same(&want, &got) {
			t.Fatalf("%s, %d places: internal/rules %+v, the model %s", s, m.block, want, &got)
		}

		now := admin{waits: true, granted: pick(4), grant: 1 + pick(2), of: 3 - pick(2), total: s.figures.total - 1}
		shrunk := rules.Shrunk{Generation: int64(now.of), Grants: int64(now.grant), Granted: int64(now.granted)}
		want, got = was, *s
		if taken := rules.Shrink(&want, shrunk); taken != m.takeBack(s, &got, now) || !m.same(&want, &got) {
			t.Fatalf("%s, %+v: internal/rules %v, %+v, the model %s", s, now, taken, want, &got)
		}

		to := was.TotalQuantity - 1
		change := rules.TemplateChange{TotalQuantity: &to, Shrunk: &shrunk}
		want, err := change.Apply(was)
		if to == 0 {
			return // no template has a quantity of 0
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := rules.CheckChange(&was, &want, false); err != nil {
			want = was
		}
		s.admins[0] = now
		m.out = nil
		m.lower(s, 0)
		if got = m.out[len(m.out)-1].Next; !m.same(&want, &got) {
			t.Fatalf("%s, %+v: internal/rules %+v, the model %s", s, now, want, &got)
		}
	})
}
