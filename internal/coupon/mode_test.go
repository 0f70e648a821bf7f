package coupon

import (
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// late returns a second instance, whose view of the templates stays as it is now.
func (h *hand) late(t *testing.T) *Flow {
	t.Helper()
	f, err := NewFlow(FlowConfig{Store: h.rows, Gate: h.memory.gate(t), Instance: "late", Concurrency: 1, LockWait: time.Second, LockLease: time.Second})
	h.must(err)
	h.must(f.templates.Refresh(t.Context()))
	return f
}

// become changes the mode.
func (h *hand) become(mode reward.IssueMode) {
	h.Helper()
	_, err := h.Catalog.Change(h.Context(), rules.TemplateChange{ID: h.id, Mode: &mode})
	h.must(err)
	_, err = h.templates.Read(h.Context(), h.id)
	h.must(err)
}

// TestALateInstanceGivesNoTicketInSYNCMode checks that an instance that does not know yet
// that the mode has become SYNC tells nobody that they wait: nothing sets places aside.
func TestALateInstanceGivesNoTicketInSYNCMode(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 2}, nil)
	h.must(h.loader.Ensure(t.Context(), h.id))
	other := h.late(t)
	h.become(reward.ModeSync)
	if s := h.request("ann"); s.Kind != StatusIssued {
		t.Errorf("ann: %+v", s)
	}
	s, err := other.Intake.Request(t.Context(), IssueCommand{TemplateID: h.id, UserID: "bob"})
	h.must(err)
	if s.Kind != StatusIssued {
		t.Errorf("bob: %+v", s)
	}
	h.move(reward.PathDatabase)
	if s, err := h.Intake.Request(t.Context(), IssueCommand{TemplateID: h.id, UserID: "cid"}); err == nil {
		t.Errorf("cid got the coupon of a user who was told first: %+v", s)
	}
	h.must(h.loader.LeaveDatabase(t.Context(), h.id))
	h.wantIssued("ann", "bob")
}

// TestALateInstanceIssuesNothingPastTheLine checks that an instance that does not know
// yet that the mode is no longer SYNC issues nothing past the line: the coupon would have
// the ticket of a user in line.
func TestALateInstanceIssuesNothingPastTheLine(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 100, Mode: reward.ModeSync}, nil)
	h.must(h.loader.Ensure(t.Context(), h.id))
	other := h.late(t)
	h.become(reward.ModeStream)
	h.waits("ann", 1)
	if s, err := other.Intake.Request(t.Context(), IssueCommand{TemplateID: h.id, UserID: "bob"}); err != nil || s.Kind != StatusWaiting {
		t.Errorf("bob: %+v, %v", s, err)
	}
	if got := h.issued(); !slices.Equal(got, []string{"ann", "bob"}) {
		t.Errorf("issued to %v", got)
	}
}
