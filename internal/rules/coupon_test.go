package rules

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// TestWhatACouponAllows has for each coupon the codes of a use, a cancel, and a confirmation
// that came too late. Empty means that it is allowed.
func TestWhatACouponAllows(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		coupon               reward.Coupon
		use, cancel, confirm string
	}{
		"issued":              {coupon: reward.Coupon{Status: reward.CouponIssued}},
		"issued, in time":     {coupon: reward.Coupon{Status: reward.CouponIssued, ExpiresAt: now.Add(1)}},
		"issued, expires now": {reward.Coupon{Status: reward.CouponIssued, ExpiresAt: now}, reward.CodeCouponExpired, reward.CodeCouponExpired, ""},
		"used":                {reward.Coupon{Status: reward.CouponUsed, ExpiresAt: now}, reward.CodeCouponUsed, reward.CodeCouponUsed, reward.CodeCouponUsed},
		"cancelled":           {reward.Coupon{Status: reward.CouponCancelled, ExpiresAt: now}, reward.CodeCouponCancelled, reward.CodeCouponCancelled, reward.CodeCouponCancelled},
		"expired":             {reward.Coupon{Status: reward.CouponExpired, ExpiresAt: now.Add(1)}, reward.CodeCouponExpired, reward.CodeCouponExpired, reward.CodeCouponExpired},
		"held":                {reward.Coupon{Status: reward.CouponHeld, ExpiresAt: now, HeldUntil: now.Add(1)}, reward.CodeCouponHeld, "", reward.CodeHoldExpired},
		"held until its end": {
			reward.Coupon{Status: reward.CouponCancelled, CancelReason: reward.ReasonHoldExpired}, reward.CodeCouponCancelled, reward.CodeCouponCancelled, reward.CodeHoldExpired,
		},
	} {
		for what, check := range map[string]struct {
			got  error
			want string
		}{
			"use": {CheckUse(&tt.coupon, now), tt.use}, "cancel": {CheckCancel(&tt.coupon, now), tt.cancel}, "confirm": {CheckConfirm(&tt.coupon), tt.confirm},
		} {
			if (check.got != nil) != (check.want != "") || check.got != nil && !reward.HasCode(check.got, check.want) {
				t.Errorf("%s, %s: %v, want code %q", name, what, check.got, check.want)
			}
		}
	}
}

func TestHowLongACouponIsHeld(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for setting, want := range map[time.Duration]struct {
		lasts  time.Duration
		status reward.CouponStatus
		code   string
		until  time.Time
	}{
		0:           {0, reward.CouponIssued, "c", time.Time{}},
		time.Second: {time.Second, reward.CouponHeld, "", until},
		time.Hour:   {time.Hour, reward.CouponHeld, "", until},
	} {
		template := &reward.CouponTemplate{HoldFor: setting}
		if lasts := HoldLasts(template); lasts != want.lasts {
			t.Errorf("with a setting of %v, a hold lasts %v", setting, lasts)
		}
		batch := IssueBatch{Requests: []CouponRequest{{Code: "c"}}}
		c := batch.Coupon(template, Decision{HeldUntil: until})
		if c.Status != want.status || c.Code != want.code || !c.HeldUntil.Equal(want.until) {
			t.Errorf("with a setting of %v, the coupon is %+v", setting, c)
		}
	}
}

func TestALeaveIsOfOneLine(t *testing.T) {
	t.Parallel()
	line := reward.CouponTemplate{Mode: reward.ModeStream, Path: reward.PathGate, Generation: 2, Settled: 5, Granted: 9, Used: 5, Version: 7}
	leave := Leave{UserID: "a", Ticket: 6, Generation: 1, GateGeneration: 2}
	type after struct{ version, used, settled int64 }
	stays := after{7, 5, 5}
	for name, tt := range map[string]struct {
		change        func(t *reward.CouponTemplate, l *Leave)
		settled, left bool
		want          LeaveOutcome
		after         after
	}{
		"of the line":           {nil, false, false, LeaveDone, after{8, 6, 5}},
		"twice":                 {nil, true, true, LeaveRepeated, stays},
		"after the settlement":  {nil, true, false, LeaveServed, stays},
		"of a settled ticket":   {func(_ *reward.CouponTemplate, l *Leave) { l.Ticket = 5 }, false, false, LeaveServed, stays},
		"that the gate forgot":  {func(_ *reward.CouponTemplate, l *Leave) { l.Generation = 0 }, false, false, LeaveRefused, stays},
		"of another generation": {func(t *reward.CouponTemplate, _ *Leave) { t.Generation = 3 }, true, true, LeaveRefused, stays},
		"without the gate":      {func(t *reward.CouponTemplate, _ *Leave) { t.Path = reward.PathDatabase }, true, true, LeaveRefused, stays},
		"without a line":        {func(t *reward.CouponTemplate, _ *Leave) { t.Mode = reward.ModeSync }, true, true, LeaveRefused, stays},
		"without a place":       {func(t *reward.CouponTemplate, _ *Leave) { t.Granted = 5 }, false, false, LeaveDone, after{8, 5, 5}},
		"in KAFKA mode":         {func(t *reward.CouponTemplate, _ *Leave) { t.Mode = reward.ModeKafka }, false, false, LeaveDone, after{8, 6, 6}},
		"behind others in KAFKA mode": {func(t *reward.CouponTemplate, l *Leave) {
			t.Mode, l.Ticket = reward.ModeKafka, 4
		}, false, false, LeaveDone, after{8, 6, 5}},
	} {
		template, l := line, leave
		if tt.change != nil {
			tt.change(&template, &l)
		}
		got := l.Apply(&template, tt.settled, tt.left)
		if now := (after{template.Version, template.Used, template.Settled}); got != tt.want || now != tt.after {
			t.Errorf("%s: %d, %+v, want %d, %+v", name, got, now, tt.want, tt.after)
		}
	}
}

func TestImportsOfCodes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		template reward.CouponTemplate
		codes    int64
		want     string
	}{
		"the first":                 {reward.CouponTemplate{TotalQuantity: 5}, 5, ""},
		"too few":                   {reward.CouponTemplate{TotalQuantity: 5}, 4, reward.CodeCodesExhausted},
		"after a generated code":    {reward.CouponTemplate{TotalQuantity: 5, IssuedTotal: 1}, 5, reward.CodeIllegalState},
		"instead of generated ones": {reward.CouponTemplate{TotalQuantity: 5, Codes: reward.CodeStyle{Length: 12}}, 5, reward.CodeIllegalState},
		"a further one":             {reward.CouponTemplate{TotalQuantity: 5, CodesImported: 5, IssuedTotal: 5, Live: 5}, 1, ""},
		"as many as there may be":   {reward.CouponTemplate{TotalQuantity: 5, CodesImported: reward.TemplateQuantityMax, CodesReturned: 1}, 1, ""},
		"too many":                  {reward.CouponTemplate{TotalQuantity: 5, CodesImported: reward.TemplateQuantityMax, CodesReturned: 1}, 2, reward.CodeConflict},
	} {
		err := CheckImport(&tt.template, tt.codes, 0)
		if (err != nil) != (tt.want != "") || err != nil && !reward.HasCode(err, tt.want) {
			t.Errorf("%s: %v, want code %q", name, err, tt.want)
		}
	}
}

func TestADrawTakesEntrantsInItsTime(t *testing.T) {
	t.Parallel()
	draw := reward.CouponTemplate{OpensAt: now.Add(time.Hour), Draw: reward.Draw{State: reward.DrawOpen, From: now}}
	closed := draw
	closed.Draw.State = reward.DrawClosed
	for at, want := range map[time.Time]bool{now.Add(-1): false, now: true, now.Add(time.Hour - 1): true, now.Add(time.Hour): false} {
		if TakesEntrants(&draw, at) != want || TakesEntrants(&closed, at) {
			t.Errorf("at %v: while it is open %v, want %v; closed %v", at, !want, want, TakesEntrants(&closed, at))
		}
	}
}

func TestARefusalBeginsAndEnds(t *testing.T) {
	t.Parallel()
	type change struct {
		since        time.Time
		ends, begins bool
	}
	later := now.Add(time.Minute)
	for name, tt := range map[string]struct {
		lasts  string
		latest time.Time
		reason string
		want   change
	}{
		"none":              {},
		"begins":            {"", time.Time{}, "A", change{now, false, true}},
		"begins again":      {"", later, "A", change{later, false, true}},
		"lasts":             {"A", later, "A", change{}},
		"ends":              {"A", now.Add(-1), "", change{now, true, false}},
		"ends early":        {"A", later, "", change{later, true, false}},
		"has a new reason":  {"A", now, "B", change{now, true, true}},
		"changes backwards": {"A", later, "B", change{later, true, true}},
	} {
		if since, ends, begins := ChangeRefusal(tt.lasts, tt.latest, tt.reason, now); (change{since, ends, begins}) != tt.want {
			t.Errorf("%s: %v, %v, %v, want %+v", name, since, ends, begins, tt.want)
		}
	}
}

func TestCouponAt(t *testing.T) {
	t.Parallel()
	const skew = 5 * time.Second
	in := func(status reward.CouponStatus, heldUntil, expiresAt time.Time) reward.Coupon {
		return reward.Coupon{Status: status, HeldUntil: heldUntil, ExpiresAt: expiresAt}
	}
	ended := now.Add(-time.Minute)
	expiredHold := in(reward.CouponCancelled, ended, now)
	expiredHold.CancelledAt, expiredHold.CancelReason = ended, reward.ReasonHoldExpired
	for _, c := range []struct{ row, want reward.Coupon }{
		{in(reward.CouponHeld, ended, now), expiredHold},
		{in(reward.CouponHeld, now.Add(-skew), ended), in(reward.CouponHeld, now.Add(-skew), ended)}, // may still be confirmed
		{in(reward.CouponIssued, time.Time{}, now), in(reward.CouponExpired, time.Time{}, now)},
		{in(reward.CouponIssued, time.Time{}, now.Add(1)), in(reward.CouponIssued, time.Time{}, now.Add(1))},
		{in(reward.CouponIssued, time.Time{}, time.Time{}), in(reward.CouponIssued, time.Time{}, time.Time{})},
		{in(reward.CouponUsed, time.Time{}, ended), in(reward.CouponUsed, time.Time{}, ended)},
		{in(reward.CouponCancelled, ended, ended), in(reward.CouponCancelled, ended, ended)},
	} {
		if got := CouponAt(c.row, now, skew); got != c.want {
			t.Errorf("%+v is %+v, want %+v", c.row, got, c.want)
		}
	}
}
