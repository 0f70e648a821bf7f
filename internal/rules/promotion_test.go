package rules

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/reward"
)

var allStatuses = []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused, reward.Completed, reward.PromotionCancelled}

// countsOf returns counts of payouts by state, each payout worth 10.
func countsOf(payouts map[reward.State]int64) (c reward.Counts) {
	for state, n := range payouts {
		c.Payouts[state], c.Amounts[state] = n, reward.Amount(10*n)
	}
	return c
}

func TestMove(t *testing.T) {
	t.Parallel()
	began, ended := now.Add(-time.Hour), now.Add(-time.Minute)
	for _, from := range allStatuses {
		for _, to := range allStatuses {
			was := reward.Promotion{ID: 1, Status: from, PausedBy: "ann", PauseReason: "because", PausedAt: began, StartedAt: began, FinishedAt: ended, StreamDestroyed: true}
			if _, err := Move(was, []reward.PromotionStatus{"", to}, to, "", "", now); from != to && !reward.HasCode(err, reward.CodeIllegalState) {
				t.Errorf("a move from %s, which is not allowed: %v", from, err)
			}
			want := reward.Promotion{ID: 1, Status: to, StartedAt: began, StreamDestroyed: to != reward.Running}
			switch to {
			case reward.Running:
				if from == reward.Draft {
					want.StartedAt = now
				}
			case reward.Paused:
				want.PausedBy, want.PauseReason, want.PausedAt = "mia", "new", now
			case reward.PromotionCancelled:
				want.CancelledBy, want.CancelledAt = "mia", now
			case reward.Completed:
				want.FinishedAt = now
			}
			got, err := Move(was, []reward.PromotionStatus{"", from}, to, "mia", "new\x00", now.Add(time.Nanosecond))
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("from %s to %s: %v (-want +got)\n%s", from, to, err, diff)
			}
		}
	}
}

// TestMayRun starts promotions with a READY and a SUCCEEDED payout, worth 130 together, under
// a limit of 100.
func TestMayRun(t *testing.T) {
	t.Parallel()
	nobody, some := reward.Approval{}, reward.Approval{Round: 1, Rounds: 1, Amount: 60, Count: 1}
	of := func(change func(a *reward.Approval)) reward.Approval {
		a := some
		change(&a)
		return a
	}
	for name, test := range map[string]struct {
		approval reward.Approval
		more     reward.State // of another payout, without an amount; SUCCEEDED: there is none
		ready    reward.Amount
		want     bool
	}{
		"needs none":                  {nobody, reward.Succeeded, 40, true},
		"needs one":                   {nobody, reward.Succeeded, 41, false},
		"needs one, with QUEUED":      {nobody, reward.Queued, 70, false},
		"has less than it needs":      {some, reward.Succeeded, 70, false},
		"one approved is left":        {of(func(a *reward.Approval) { a.Count = 2 }), reward.Retrying, 70, true},
		"no approved is left":         {some, reward.Retrying, 70, false},
		"one is QUEUED":               {some, reward.Queued, 70, true},
		"has what it needs":           {of(func(a *reward.Approval) { a.Amount = 130 }), reward.Succeeded, 70, true},
		"one without an amount":       {of(func(a *reward.Approval) { a.Amount, a.Unvalued = 130, 2 }), reward.Succeeded, 70, false},
		"approved without an amount":  {of(func(a *reward.Approval) { a.Amount, a.Unvalued = 130, 1 }), reward.Succeeded, 70, true},
		"granted what it needs":       {reward.Approval{Granted: new(reward.Amount(100))}, reward.Succeeded, 40, true},
		"granted less":                {reward.Approval{Granted: new(reward.Amount(99))}, reward.Succeeded, 40, false},
		"granted more than the limit": {reward.Approval{Granted: new(reward.Amount(math.MaxInt64))}, reward.Succeeded, 41, false},
	} {
		var c reward.Counts
		c.Payouts[reward.Ready], c.Payouts[reward.Succeeded], c.Amounts[reward.Ready], c.Amounts[reward.Succeeded] = 1, 1, test.ready, 60
		if test.more != reward.Succeeded {
			c.Payouts[test.more] = 1
		}
		p := reward.Promotion{Status: reward.Paused, Currency: "KRW", Approval: test.approval}
		above := func(n reward.Amount) reward.Limits {
			return reward.Limits{Default: 1, Own: map[string]reward.Amount{"KRW": n}}
		}
		if got := MayRun(p, c, above(100), now); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
		if p.Status = reward.Running; MayBeStarved(p, c, above(100)) == test.want {
			t.Errorf("%s: it is starved just if it may not resume", name)
		}
		if p.RejectedBy = "mia"; MayRun(p, c, above(100), now) || !MayRun(p, c, above(0), now) {
			t.Errorf("%s: a rejection counts just with a limit", name)
		}
	}
	waits := reward.Promotion{Status: reward.Running}
	if c := countsOf(map[reward.State]int64{reward.Unknown: 9}); MayBeStarved(waits, c, reward.Limits{Default: 1}) {
		t.Error("without a row to dispatch nothing is starved")
	}
	waits.Status = reward.Paused
	if c := countsOf(map[reward.State]int64{reward.Ready: 9}); MayBeStarved(waits, c, reward.Limits{Default: 1}) {
		t.Error("a PAUSED promotion is starved")
	}
}

func TestStartsEarly(t *testing.T) {
	t.Parallel()
	c := countsOf(map[reward.State]int64{reward.Ready: 5}) // worth 50
	for name, test := range map[string]struct {
		status   reward.PromotionStatus
		starts   time.Time
		above    reward.Amount
		approval reward.Approval
		want     bool
	}{
		"later":                    {reward.Draft, now.Add(time.Microsecond), 49, reward.Approval{}, true},
		"later, though approved":   {reward.Draft, now.Add(time.Microsecond), 49, reward.Approval{Rounds: 1, Amount: 50, Count: 5}, true},
		"now":                      {reward.Draft, now, 49, reward.Approval{}, false},
		"at no time":               {reward.Draft, time.Time{}, 49, reward.Approval{}, false},
		"started":                  {reward.Paused, now.Add(time.Hour), 49, reward.Approval{}, false},
		"needs no approval":        {reward.Draft, now.Add(time.Hour), 50, reward.Approval{}, false},
		"of unknown worth":         {reward.Draft, now.Add(time.Hour), 50, reward.Approval{Unvalued: 1}, true},
		"granted less":             {reward.Draft, now.Add(time.Hour), 50, reward.Approval{Granted: new(reward.Amount(49))}, true},
		"without a limit":          {reward.Draft, now.Add(time.Hour), 0, reward.Approval{Unvalued: 1}, false},
		"within the same instant":  {reward.Draft, now, 49, reward.Approval{}, false},
		"granted, above the limit": {reward.Draft, now.Add(time.Hour), 49, reward.Approval{Granted: new(reward.Amount(90))}, true},
	} {
		p := reward.Promotion{Status: test.status, StartsAt: test.starts, Approval: test.approval}
		if got := StartsEarly(p, c, reward.Limits{Default: test.above}, now.Add(time.Nanosecond)); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestComplete(t *testing.T) {
	t.Parallel()
	done := map[reward.State]int64{reward.Succeeded: 1, reward.Failed: 1, reward.Cancelled: 1, reward.Unknown: 1}
	with := func(state reward.State) reward.Counts {
		c := countsOf(done)
		c.Payouts[state]++
		return c
	}
	p := func(status reward.PromotionStatus) reward.Promotion { return reward.Promotion{ID: 1, Status: status} }
	expects := func(n int64, closed bool) reward.Promotion {
		p := p(reward.Running)
		p.ExpectedCount, p.Closed = &n, closed
		return p
	}
	ended := p(reward.PromotionCancelled)
	ended.FinishedAt = now.Add(-time.Hour)
	for name, test := range map[string]struct {
		p    reward.Promotion
		c    reward.Counts
		b    Blockers
		want reward.PromotionStatus // "": it does not end
	}{
		"RUNNING":                    {p(reward.Running), countsOf(done), Blockers{}, reward.Completed},
		"RUNNING, with an upload":    {p(reward.Running), countsOf(done), Blockers{Uploads: true}, ""},
		"RUNNING, with a lookup":     {p(reward.Running), countsOf(done), Blockers{Lookups: true}, reward.Completed},
		"as many as expected":        {expects(4, false), countsOf(done), Blockers{}, reward.Completed},
		"fewer than expected":        {expects(5, false), countsOf(done), Blockers{}, ""},
		"fewer, but closed":          {expects(5, true), countsOf(done), Blockers{}, reward.Completed},
		"CANCELLED":                  {p(reward.PromotionCancelled), countsOf(done), Blockers{}, reward.PromotionCancelled},
		"CANCELLED, with a lookup":   {p(reward.PromotionCancelled), countsOf(done), Blockers{Lookups: true}, ""},
		"CANCELLED, with an upload":  {p(reward.PromotionCancelled), countsOf(done), Blockers{Uploads: true}, reward.PromotionCancelled},
		"CANCELLED and finished":     {ended, countsOf(done), Blockers{}, ""},
		"DRAFT":                      {p(reward.Draft), countsOf(done), Blockers{}, ""},
		"PAUSED":                     {p(reward.Paused), countsOf(done), Blockers{}, ""},
		"COMPLETED":                  {p(reward.Completed), countsOf(done), Blockers{}, ""},
		"RUNNING, with READY":        {p(reward.Running), with(reward.Ready), Blockers{}, ""},
		"RUNNING, with QUEUED":       {p(reward.Running), with(reward.Queued), Blockers{}, ""},
		"RUNNING, with RETRYING":     {p(reward.Running), with(reward.Retrying), Blockers{}, ""},
		"CANCELLED, with READY":      {p(reward.PromotionCancelled), with(reward.Ready), Blockers{}, ""},
		"CANCELLED, with QUEUED":     {p(reward.PromotionCancelled), with(reward.Queued), Blockers{}, ""},
		"CANCELLED, with a RETRYING": {p(reward.PromotionCancelled), with(reward.Retrying), Blockers{}, ""},
	} {
		want := test.p
		if test.want != "" {
			want.Status, want.FinishedAt = test.want, now
		}
		got, did := Complete(test.p, test.c, test.b, now.Add(time.Nanosecond))
		if got != want || did != (test.want != "") {
			t.Errorf("%s: %v, %+v, want %+v", name, did, got, want)
		}
	}
}

// TestJudge judges canaries, most of them of two payouts, of which at most half may fail.
func TestJudge(t *testing.T) {
	t.Parallel()
	good := map[reward.State]int64{reward.Succeeded: 1, reward.Failed: 1, reward.Ready: 7}
	and := func(state reward.State, n int64) map[reward.State]int64 {
		return map[reward.State]int64{reward.Succeeded: 1, reward.Failed: 1, state: n}
	}
	of := func(targets int64, rate float64) reward.Canary {
		return reward.Canary{Targets: targets, MaxFailureRate: rate, Dispatched: targets}
	}
	failed := func(n, of int64) map[reward.State]int64 {
		return map[reward.State]int64{reward.Failed: n, reward.Succeeded: of - n}
	}
	two := reward.Canary{Targets: 2, MaxFailureRate: 0.5, Dispatched: 2}
	change := func(change func(c *reward.Canary)) reward.Canary {
		c := two
		change(&c)
		return c
	}
	for name, test := range map[string]struct {
		canary reward.Canary
		counts map[reward.State]int64
		want   reward.PromotionStatus // "": it is not judged
	}{
		"good":              {two, good, reward.Running},
		"bad":               {two, map[reward.State]int64{reward.Failed: 2}, reward.Paused},
		"none fails":        {two, map[reward.State]int64{reward.Succeeded: 2}, reward.Running},
		"none may fail":     {change(func(c *reward.Canary) { c.MaxFailureRate = 0 }), good, reward.Paused},
		"all may fail":      {change(func(c *reward.Canary) { c.MaxFailureRate = 1 }), map[reward.State]int64{reward.Failed: 2}, reward.Running},
		"one is missing":    {two, map[reward.State]int64{reward.Succeeded: 1, reward.Ready: 7}, ""},
		"QUEUED":            {two, and(reward.Queued, 1), ""},
		"RETRYING":          {two, and(reward.Retrying, 1), ""},
		"UNKNOWN":           {two, and(reward.Unknown, 1), ""},
		"fewer were sent":   {change(func(c *reward.Canary) { c.Dispatched = 1 }), good, ""},
		"more were decided": {two, and(reward.Succeeded, 2), reward.Running},
		"judged":            {change(func(c *reward.Canary) { c.Judged = true }), good, ""},
		"no canary":         {reward.Canary{Dispatched: 2}, good, ""},
		"nothing":           {reward.Canary{Targets: 2}, nil, ""},
		"at the rate":       {of(100, 0.29), failed(29, 100), reward.Running},
		"above the rate":    {of(100, 0.29), failed(30, 100), reward.Paused},
		"at a small rate":   {of(100, 0.07), failed(7, 100), reward.Running},
		"at a third":        {of(3, 1./3), failed(1, 3), reward.Running},
	} {
		for _, status := range allStatuses {
			p := reward.Promotion{Status: status, Canary: test.canary}
			want := p
			judged := test.want != "" && status == reward.Running
			if judged {
				want.Status, want.Canary.Judged = test.want, true
				if test.want == reward.Paused {
					want.PauseReason, want.PausedAt = "bad", now
				}
			}
			if got, did := Judge(p, countsOf(test.counts), "bad\x00", now); got != want || did != judged {
				t.Errorf("%s, %s: %v, %+v, want %+v", name, status, did, got, want)
			}
		}
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	left := countsOf(map[reward.State]int64{reward.Ready: 1, reward.Queued: 1})
	for name, test := range map[string]struct {
		endsAt time.Time
		counts reward.Counts
		ends   bool
	}{
		"READY":    {now, left, true},
		"RETRYING": {now.Add(-time.Hour), countsOf(map[reward.State]int64{reward.Retrying: 1}), true},
		"before":   {now.Add(1), left, false},
		"no end":   {time.Time{}, left, false},
		"QUEUED":   {now, countsOf(map[reward.State]int64{reward.Queued: 1, reward.Unknown: 1}), false},
		"nothing":  {now, reward.Counts{}, false},
	} {
		for _, status := range allStatuses {
			p := reward.Promotion{Status: status, EndsAt: test.endsAt}
			got, ended := End(p, test.counts, now)
			if ended != (test.ends && status == reward.Running) || ended != (got != p) || ended && (got.Status != reward.Paused || got.PausedAt != now) {
				t.Errorf("%s, %s: %v, %+v", name, status, ended, got)
			}
			undecided := test.counts.Undecided() > 0
			if may := MayRun(p, test.counts, reward.Limits{}, now); may != (!Ended(&p, now) || status != reward.Draft && !undecided) {
				t.Errorf("%s, %s: it may run: %v", name, status, may)
			}
		}
	}
}

func TestApproveAndReject(t *testing.T) {
	t.Parallel()
	c := countsOf(map[reward.State]int64{reward.Ready: 3, reward.Failed: 1})
	for _, status := range allStatuses {
		was := reward.Promotion{
			ID: 1, Status: status, Revision: 7, ApprovedBy: "ann", RejectedBy: "bob", RejectReason: "no", PauseReason: "because",
			Approval: reward.Approval{Round: 2, Rounds: 1, Unvalued: 3, Amount: 10, Count: 1, Granted: new(reward.Amount(5))},
		}
		allowed := status == reward.Draft || status == reward.Running || status == reward.Paused
		approved, rejected := was, was
		approved.ApprovedBy, approved.RejectedBy, approved.RejectReason, approved.Revision = "lee", "", "", 8
		approved.Approval = reward.Approval{Round: 3, Rounds: 3, Unvalued: 3, Amount: 40, Count: 4, Granted: was.Approval.Granted}
		rejected.ApprovedBy, rejected.RejectedBy, rejected.RejectReason, rejected.Revision = "", "lee", "why", 8
		rejected.Approval = reward.Approval{Round: 2, Unvalued: 3, Granted: was.Approval.Granted}
		if status != reward.Draft {
			rejected.Status, rejected.PausedBy, rejected.PauseReason = reward.Paused, "lee", "rejected"
			rejected.PausedAt = now
		}
		got, err := Approve(was, c, "lee", 7)
		if allowed && (err != nil || got != approved) || !allowed && !reward.HasCode(err, reward.CodeIllegalState) {
			t.Errorf("%s approved: %v\n%s", status, err, cmp.Diff(approved, got))
		}
		got, err = Reject(was, "lee", "why\x00", "rejected\x00", now)
		if allowed && (err != nil || got != rejected) || !allowed && !reward.HasCode(err, reward.CodeIllegalState) {
			t.Errorf("%s rejected: %v\n%s", status, err, cmp.Diff(rejected, got))
		}
		if _, err := Approve(was, c, "lee", 6); allowed && !reward.HasCode(err, reward.CodePreconditionFailed) {
			t.Errorf("%s of another revision: %v", status, err)
		}
	}
}

func TestARecordStartsADraft(t *testing.T) {
	t.Parallel()
	early := countsOf(map[reward.State]int64{reward.Ready: 5})
	above, three, four := reward.Limits{Default: 49}, int64(3), int64(4)
	for _, status := range allStatuses {
		for name, change := range map[string]func(p *reward.Promotion){
			"":         func(*reward.Promotion) {},
			"rejected": func(p *reward.Promotion) { p.RejectedBy = "mia" },
			"early":    func(p *reward.Promotion) { p.StartsAt = now.Add(time.Hour) },
			"expects":  func(p *reward.Promotion) { p.ExpectedCount = &four },
		} {
			for _, authored := range []bool{false, true} {
				was := reward.Promotion{Status: status, StreamDestroyed: true}
				change(&was)
				want := was
				if want.ExpectedCount == nil {
					want.ExpectedCount = &three
				}
				if status == reward.Draft && name != "rejected" && name != "early" {
					want.Status, want.StartedAt, want.StreamDestroyed = reward.Running, now, false
					if authored {
						want.Approval.Granted = new(reward.Amount)
					}
				}
				if diff := cmp.Diff(want, StartByRecord(was, early, &three, authored, above, now)); diff != "" {
					t.Errorf("%s %s, authored %v (-want +got):\n%s", status, name, authored, diff)
				}
			}
		}
	}
}

func TestOnlyARegisteredDraftIsFilled(t *testing.T) {
	t.Parallel()
	registered := NewRegistered(1, reward.Point, now)
	for _, status := range allStatuses {
		was := registered
		was.Status, was.Approval, was.ApprovedBy, was.RejectedBy = status, reward.Approval{Round: 3, Rounds: 3, Unvalued: 2, Amount: 5, Count: 1, Granted: new(reward.Amount)}, "lee", "mia"
		given := reward.Promotion{ID: 1, Type: reward.Point, Name: "x", CreatedAt: now.Add(time.Hour)}
		got, err := FillRegistered(was, given)
		if status != reward.Draft {
			if !reward.HasCode(err, reward.CodeExists) {
				t.Errorf("%s: %v", status, err)
			}
			continue
		}
		want := NewPromotion(given)
		want.CreatedAt, want.Version, want.Revision, want.Approval = now, 2, registered.Revision+1, reward.Approval{Round: 3, Unvalued: 2}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		if _, err := FillRegistered(got, given); !reward.HasCode(err, reward.CodeExists) {
			t.Errorf("filled twice: %v", err)
		}
		given.Type = reward.Voucher
		if _, err := FillRegistered(was, given); !reward.HasCode(err, reward.CodeTypeMismatch) {
			t.Errorf("of another type: %v", err)
		}
	}
}

func TestWhatLoosensVoidsAnApproval(t *testing.T) {
	t.Parallel()
	approved := reward.Promotion{
		ID: 1, Status: reward.Draft, Amount: 1, VoucherCode: "v", Currency: "KRW", MaxAmount: 300, RatePerSecond: 5, Weight: 1, StartsAt: now.Add(time.Minute),
		Canary: reward.Canary{Targets: 10, MaxFailureRate: 0.1}, ApprovedBy: "lee", Approval: reward.Approval{Round: 2, Rounds: 2, Amount: 9, Count: 1},
	}
	canary := func(targets int64, rate float64) *reward.Canary {
		return &reward.Canary{Targets: targets, MaxFailureRate: rate}
	}
	for voids, changes := range map[bool][]PromotionChange{
		false: {
			{Name: new("n")},
			{Weight: new(9)},
			{MaxRetries: new(9)},
			{MaxAmount: new(reward.Amount(300))},
			{MaxAmount: new(reward.Amount(299))},
			{RatePerSecond: new(4)},
			{StartsAt: new(now.Add(time.Hour))},
			{Canary: canary(9, 0.1)},
			{Canary: canary(9, 0.05)},
			{Currency: new("KRW")},
		},
		true: {
			{Amount: new(reward.Amount(2))},
			{VoucherCode: new("w")},
			{Currency: new("EUR"), Amount: new(reward.Amount(1)), MaxAmount: new(reward.Amount(300))},
			{MaxAmount: new(reward.Amount(301))},
			{MaxAmount: new(reward.Amount)},
			{RatePerSecond: new(6)},
			{RatePerSecond: new(int)},
			{StartsAt: new(now.Add(time.Second))},
			{StartsAt: new(time.Time)},
			{Canary: canary(11, 0.05)},
			{Canary: canary(9, 0.2)},
			{Canary: canary(0, 0)},
		},
	} {
		for _, c := range changes {
			got, err := c.Apply(approved, reward.Counts{}, 0)
			want, by := approved.Approval, "lee"
			if voids {
				want, by = reward.Approval{Round: 2}, ""
			}
			if err != nil || got.Approval != want || got.ApprovedBy != by {
				t.Errorf("%+v: %v, %+v by %q", c, err, got.Approval, got.ApprovedBy)
			}
		}
	}
}

func TestOnlyADraftChangesWhatTargetsGet(t *testing.T) {
	t.Parallel()
	spent := countsOf(map[reward.State]int64{reward.Succeeded: 10, reward.Queued: 10, reward.Retrying: 10, reward.Unknown: 10, reward.Failed: 7, reward.Ready: 7})
	for _, status := range allStatuses {
		p := reward.Promotion{ID: 1, Status: status}
		for _, c := range []PromotionChange{{Amount: new(reward.Amount)}, {VoucherCode: new("")}, {Currency: new("")}, {Canary: new(reward.Canary)}, {StartsAt: new(time.Time)}} {
			if _, err := c.Apply(p, spent, 50); (err == nil) != (status == reward.Draft) || err != nil && !reward.HasCode(err, reward.CodeImmutable) {
				t.Errorf("%s, %+v: %v", status, c, err)
			}
		}
		for budget, ok := range map[reward.Amount]bool{0: true, 1: false, 449: false, 450: true} {
			c := PromotionChange{MaxAmount: &budget}
			if got, err := c.Apply(p, spent, 50); (err == nil) != ok || err != nil && !reward.HasCode(err, reward.CodeConflict) || ok && got.MaxAmount != budget {
				t.Errorf("%s, budget %d: %v", status, budget, err)
			}
		}
	}
}
