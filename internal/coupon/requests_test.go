package coupon

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// want fails the test unless a request returns a code.
func (r *rig) want(i *instance, id reward.TemplateID, user, code string) {
	r.Helper()
	if s, got := r.request(i, id, user); got != code {
		r.Errorf("%s got %q (%+v), want %q", user, got, s, code)
	}
}

// soon waits until a request returns a code.
func (r *rig) soon(i *instance, id reward.TemplateID, user, code string) {
	r.Helper()
	r.until(fmt.Sprintf("%s gets %q", user, code), func() bool {
		_, got := r.request(i, id, user)
		return got == code
	})
}

// take requests a coupon and waits until the user has it.
func (r *rig) take(i *instance, id reward.TemplateID, user string) reward.Coupon {
	r.Helper()
	s, code := r.request(i, id, user)
	if code != "" {
		r.Fatalf("%s got %s", user, code)
	}
	if s.Kind == StatusWaiting {
		s = r.outcome(i, id, user)
	}
	if s.Kind != StatusIssued {
		r.Fatalf("%s: %+v", user, s)
	}
	return s.Coupon
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		r.startAll(2)
		a, b := r.instances[0], r.instances[1]

		// A repeat gets the existing coupon, on any instance.
		id := r.create(reward.CouponTemplate{TotalQuantity: 2, Mode: mode, ReissueAfterCancel: true})
		c := r.take(a, id, "ann")
		for _, i := range r.instances {
			r.until("the repeat is known", func() bool {
				s, code := r.request(i, id, "ann")
				return code == "" && s.Kind == StatusIssued && s.Duplicate && s.Coupon.ID == c.ID
			})
		}
		r.take(b, id, "bob")
		r.want(a, id, "cid", reward.CodeSoldOut)
		r.want(b, id, "cid", reward.CodeSoldOut)

		// A cancelled coupon is available within 2 s, even on an instance that has
		// just refused a request.
		fixture.Must(b.Catalog.Cancel(r.Context(), c.ID, "ann"))(r)
		began := time.Now()
		r.soon(a, id, "cid", "")
		if took := r.since(began); took > 2*time.Second {
			r.Errorf("sold out for %v although a coupon was free", took)
		}
		r.outcome(a, id, "cid")
		r.want(a, id, "ann", reward.CodeSoldOut)
		if _, err := a.Catalog.Cancel(r.Context(), c.ID, "ann"); !reward.HasCode(err, reward.CodeCouponCancelled) {
			r.Errorf("the second cancel: %v", err)
		}

		// New stock is available to a user who was just refused.
		five := int64(3)
		fixture.Must(b.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: &five}))(r)
		r.soon(a, id, "ann", "")
		r.outcome(a, id, "ann")
		two := int64(2)
		if _, err := a.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: &two}); !reward.HasCode(err, reward.CodeConflict) {
			r.Errorf("a quantity below the live coupons: %v", err)
		}

		// The opening times.
		id = r.create(reward.CouponTemplate{TotalQuantity: 9, Mode: mode, OpensAt: time.Now().Add(3 * time.Second)})
		r.want(a, id, "ann", reward.CodeNotOpen)
		_, err := a.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: "ann"})
		v := fixture.Must(r.rows.TemplateGet(r.Context(), id))(r)
		if told, ok := errors.AsType[*reward.Error](err); !ok || !told.OpensAt.Equal(v.OpensAt) {
			r.Errorf("%v does not contain the opening time %v", err, v.OpensAt)
		}
		if _, err := a.Catalog.Close(r.Context(), id); !reward.HasCode(err, reward.CodeIllegalState) {
			r.Errorf("closing it before it opens: %v", err)
		}
		r.soon(b, id, "ann", "")
		r.outcome(b, id, "ann")
		r.sleep(time.Millisecond) // it closes after the instant of its opening
		fixture.Must(a.Catalog.Close(r.Context(), id))(r)
		r.soon(b, id, "bob", reward.CodeClosed)

		if _, err := a.Intake.Request(r.Context(), IssueCommand{TemplateID: 999, UserID: "ann"}); !reward.HasCode(err, reward.CodeTemplateNotFound) {
			r.Errorf("unknown template: %v", err)
		}
		if _, err := a.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: "a\x00b"}); !reward.HasCode(err, reward.CodeInvalid) {
			r.Errorf("hostile user: %v", err)
		}
		if _, err := a.Intake.Status(r.Context(), id, "nobody"); !reward.HasCode(err, reward.CodeRequestUnknown) {
			r.Errorf("unknown request: %v", err)
		}
		r.balanced(id)
	})
}

// TestRefusalsFromMemory checks that an instance which has told a user that a template is
// sold out says so again without the gate, until something becomes available, and that it
// says so to nobody else: others may have a coupon.
func TestRefusalsFromMemory(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		r.startAll(2)
		a, b := r.instances[0], r.instances[1]
		calls := func() (n int) {
			a.gate.set(func(g *faultyGate) { n = g.admits })
			return n
		}
		id := r.create(reward.CouponTemplate{TotalQuantity: 1, Mode: mode, ReissueAfterCancel: true})
		ann := r.take(b, id, "ann")
		r.until("the last change has reached the instance", func() bool {
			r.want(a, id, "cid", reward.CodeSoldOut)
			before := calls()
			r.want(a, id, "cid", reward.CodeSoldOut)
			return calls() == before
		})
		before := calls()
		for range 20 {
			r.want(a, id, "cid", reward.CodeSoldOut)
			if err := a.Intake.Check(r.Context(), IssueCommand{TemplateID: id, UserID: "cid"}); !reward.HasCode(err, reward.CodeSoldOut) {
				r.Errorf("check: %v", err)
			}
		}
		if n := calls() - before; n != 0 {
			r.Errorf("%d calls of the gate for 40 repeated requests", n)
		}
		// It has told nobody but cid.
		if s, code := r.request(a, id, "ann"); code != "" || s.Coupon.ID != ann.ID {
			r.Errorf("a user who has the coupon got %+v, %q", s, code)
		}
		fixture.Must(b.Catalog.Cancel(r.Context(), ann.ID, "ann"))(r)
		r.soon(a, id, "cid", "")
		r.outcome(a, id, "cid")
		r.soon(a, id, "dan", reward.CodeSoldOut)
		fixture.Must(b.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: new(int64(2))}))(r)
		r.soon(a, id, "dan", "")
	})
}

// TestRefusalsByReason checks that refusals at the gate, from memory and by a check are counted by
// their reason.
func TestRefusalsByReason(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		metrics := obs.NewMetrics()
		i := r.start(func(c *FlowConfig) { c.Metrics = metrics })
		one := r.create(reward.CouponTemplate{TotalQuantity: 1})
		r.take(i, one, "ann")
		r.want(i, one, "bob", reward.CodeSoldOut) // at the gate
		r.want(i, one, "bob", reward.CodeSoldOut) // from memory
		i.Intake.Refused(one, i.Intake.Check(r.Context(), IssueCommand{TemplateID: one, UserID: "bob"}))
		two := r.create(reward.CouponTemplate{TotalQuantity: 2})
		r.take(i, two, "cid")
		fixture.Must(i.Catalog.Close(r.Context(), two))(r)
		r.soon(i, two, "dan", reward.CodeClosed)

		sums := metrics.TimelineTake().Templates
		var refused int64
		for n, reason := range obs.RefusalReasons {
			refused += sums[0].Reasons[n]
			if want := map[string]int64{reward.CodeSoldOut: 3}[reason]; sums[one].Reasons[n] != want {
				r.Errorf("%s: %d, want %d", reason, sums[one].Reasons[n], want)
			}
			if n := sums[two].Reasons[n]; (n > 0) != (reason == reward.CodeClosed) {
				r.Errorf("closed: %d by %s", n, reason)
			}
		}
		if sums[0].Refused != refused {
			r.Errorf("%d refusals, %d with a reason", sums[0].Refused, refused)
		}
	})
}

// TestCheck checks that a check says what a request would be refused with, and requests
// nothing.
func TestCheck(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		check := func(id reward.TemplateID, user, want string) {
			r.Helper()
			err := i.Intake.Check(r.Context(), IssueCommand{TemplateID: id, UserID: user})
			if want == "" && err != nil || want != "" && !reward.HasCode(err, want) {
				r.Errorf("%s: %v, want %q", user, err, want)
			}
		}
		id := r.create(reward.CouponTemplate{TotalQuantity: 2})
		r.take(i, id, "ann")
		for range 5 { // each would get the last coupon
			check(id, "bob", "")
		}
		r.take(i, id, "bob")
		check(id, "ann", "") // it has the coupon
		check(id, "cid", reward.CodeSoldOut)
		r.want(i, id, "cid", reward.CodeSoldOut)
		check(id, "cid", reward.CodeSoldOut) // known by now
		two := r.create(reward.CouponTemplate{TotalQuantity: 9, PerUserLimit: 2})
		r.take(i, two, "ann")
		check(two, "ann", "")
		r.take(i, two, "ann")
		check(two, "ann", reward.CodeUserLimit)
		early := r.create(reward.CouponTemplate{TotalQuantity: 2, OpensAt: time.Now().Add(time.Hour)})
		check(early, "ann", "") // its gate is not loaded
		r.want(i, early, "bob", reward.CodeNotOpen)
		check(early, "ann", reward.CodeNotOpen)
		check(999, "ann", reward.CodeTemplateNotFound)
	})
}

// TestHistory checks the outcomes of a user's requests, and the refusals of a template.
func TestHistory(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: 1, ValidFor: time.Second})
		c := r.take(i, id, "ann")
		r.want(i, id, "bob", reward.CodeSoldOut)
		r.until("the refusal is recorded", func() bool {
			h := fixture.Must(i.Catalog.History(r.Context(), "ann"))(r)
			got := h.Refusals[id]
			return len(h.Outcomes) == 1 && h.Outcomes[0].Coupon.ID == c.ID && len(got) == 1 && got[0].Reason == reward.CodeSoldOut && got[0].Until.IsZero()
		})
		h, err := i.Catalog.History(r.Context(), "bob", id)
		if err != nil || len(h.Outcomes) != 0 || len(h.Refusals[id]) != 1 {
			r.Errorf("%+v, %v", h, err)
		}
		// Otherwise a wrong ID would look like a template that never refused anybody.
		if _, err := i.Catalog.History(r.Context(), "bob", id, 999); !reward.HasCode(err, reward.CodeTemplateNotFound) {
			r.Errorf("history with template 999: %v", err)
		}
		// An expired coupon still counts against the quantity.
		r.until("it expires", func() bool {
			got, err := i.Catalog.Coupon(r.Context(), c.ID)
			return err == nil && got.Status == reward.CouponExpired
		})
		if _, err := i.Catalog.Use(r.Context(), c.ID); !reward.HasCode(err, reward.CodeCouponExpired) {
			r.Errorf("the use of an expired coupon: %v", err)
		}
		r.want(i, id, "bob", reward.CodeSoldOut)
	})
}

// TestWaitingLine checks that users see their rank, and that it never rises.
func TestWaitingLine(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 100})
		for n := range 100 {
			s, code := r.request(i, id, fmt.Sprint("u", n))
			if code != "" || s.Ticket != int64(n+1) || s.Rank != int64(n) || s.Kind != StatusWaiting {
				r.Fatalf("u%d: %q %+v", n, code, s)
			}
		}
		r.want(i, id, "late", reward.CodeSoldOut)
		s, code := r.request(i, id, "u7")
		if code != "" || !s.Duplicate || s.Ticket != 8 || s.Rank != 7 {
			r.Errorf("%q %+v", code, s)
		}
		w, stop := i.Notifier.Watch(id, "u99", Status{})
		defer stop()
		r.start() // an instance that issues
		last := Status{Rank: 99}
		for s := range w.Updates() {
			if s.Kind != StatusWaiting {
				if s.Kind != StatusIssued || s.Coupon.Ticket != 100 {
					r.Errorf("%+v", s)
				}
				break
			}
			if s.Rank > last.Rank {
				r.Errorf("from %+v to %+v", last, s)
			}
			last = s
		}
		r.balanced(id)
	})
}
