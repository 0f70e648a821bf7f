package reward

import (
	"testing"
)

func TestPauseCause(t *testing.T) {
	t.Parallel()
	rejected := Promotion{Status: Paused, PausedBy: "lee", RejectedBy: "lee", PauseReason: `rejected by "lee": too much`}
	if got := PauseCause(&rejected); got != "rejected" {
		t.Errorf("a rejection is %q", got)
	}
	for _, tc := range []struct{ by, reason, want string }{
		{"kim", `paused by "kim"`, "person"},
		{"kim", "ended at noon", "person"},
		{"kim", `rejected by "lee": a joke`, "person"},
		{"", "the next payout would exceed the budget maxAmount = 100 KRW, of which 90 KRW is spent", "budget"},
		{"", "51 of the last 100 payouts that ended failed: check their error codes before you resume", "failures"},
		{"", "waits for an approval: it is worth 2,000 KRW; ask someone who did not create, change or fill it to approve it, then resume", "approval"},
		{"", "ended at 2026-12-01T10:00:00Z: to pay the others, set a later endsAt, or none, and resume it", "ended"},
		{"", "the canary is bad: 6 of the first 10 failed, more than a share of 0.5; resume to pay the others anyway", "canary"},
		{"", "outcomes of promotion 7 cannot be recorded: the database does not take them; see the log", "outcomes"},
		{"", "the provider has charged target 3 twice (reconciliation 12)", "books"},
		{"", "the provider responded HTTP 401 to target 3", "provider"},
		{"", "promotion 7 cannot be sent to the provider: it has a new currency", "provider"},
		{"", "something new", ""},
	} {
		p := Promotion{Status: Paused, PausedBy: tc.by, PauseReason: tc.reason}
		if got := PauseCause(&p); got != tc.want {
			t.Errorf("%q by %q is %q, want %q", tc.reason, tc.by, got, tc.want)
		}
		p.Status = Running
		if got := PauseCause(&p); got != "" {
			t.Errorf("of a running promotion: %q", got)
		}
	}
}
