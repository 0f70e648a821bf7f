package rules

import (
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

// TestPlacesOfAGate has for each template what its row grants to the gate, and takes back.
// Templates have 10 coupons, of which the row has granted places in 2 steps.
func TestPlacesOfAGate(t *testing.T) {
	t.Parallel()
	grant := func(generation, grants, granted, lacking, more int64) func(*reward.CouponTemplate) bool {
		return func(t *reward.CouponTemplate) bool { return Grant(t, generation, grants, granted, lacking, more) }
	}
	shrink := func(generation, grants, granted int64) func(*reward.CouponTemplate) bool {
		return func(t *reward.CouponTemplate) bool {
			return Shrink(t, Shrunk{Generation: generation, Grants: grants, Granted: granted})
		}
	}
	mode := func(m reward.IssueMode) func(*reward.CouponTemplate) {
		return func(t *reward.CouponTemplate) { t.Mode = m }
	}
	codes := func(t *reward.CouponTemplate) { t.CodesImported = 5 }
	database := func(t *reward.CouponTemplate) { t.Path = reward.PathDatabase }
	const unchanged = -1
	for name, tt := range map[string]struct {
		live, granted, used int64
		change              func(*reward.CouponTemplate)
		rule                func(*reward.CouponTemplate) bool
		want                int64 // granted afterwards, or unchanged
	}{
		"as many as users lack":                         {rule: grant(7, 2, 0, 3, 0), want: 3},
		"all that are left":                             {granted: 3, rule: grant(7, 2, 3, 9, 9), want: 10},
		"those who lack places, then half of the rest":  {rule: grant(7, 2, 0, 3, 64), want: 6},
		"fewer than half of the rest":                   {granted: 6, rule: grant(7, 2, 6, 0, 1), want: 7},
		"half of three":                                 {granted: 7, rule: grant(7, 2, 7, 0, 64), want: 8},
		"the last one to a user":                        {granted: 9, rule: grant(7, 2, 9, 1, 64), want: 10},
		"the last one to nobody yet":                    {granted: 9, rule: grant(7, 2, 9, 0, 64), want: unchanged},
		"what coupons leave":                            {live: 4, granted: 6, used: 4, rule: grant(7, 2, 6, 9, 0), want: 10},
		"nothing while too many are live":               {live: 11, rule: grant(7, 2, 0, 1, 0), want: unchanged},
		"what codes leave":                              {change: codes, rule: grant(7, 2, 0, 9, 0), want: 5},
		"nobody asks":                                   {granted: 3, rule: grant(7, 2, 3, 0, 0), want: unchanged},
		"none, to a gate that an old shrink left small": {granted: 3, rule: grant(7, 2, 2, 0, 0), want: 3},
		"a gate of another generation":                  {granted: 3, rule: grant(8, 2, 3, 1, 0), want: unchanged},
		"a gate without the latest grant":               {granted: 3, rule: grant(7, 1, 3, 1, 0), want: unchanged},
		"no gate on the database path":                  {change: database, rule: grant(7, 2, 0, 1, 0), want: unchanged},
		"KAFKA":                                         {change: mode(reward.ModeKafka), rule: grant(7, 2, 0, 3, 0), want: 3},
		"SYNC":                                          {change: mode(reward.ModeSync), rule: grant(7, 2, 0, 3, 0), want: unchanged},

		"back to what the gate has given":        {granted: 6, used: 2, rule: shrink(7, 2, 4), want: 4},
		"a shrink grants nothing":                {granted: 4, used: 2, rule: shrink(7, 2, 5), want: 4},
		"a shrink takes nothing that is used":    {granted: 4, used: 2, rule: shrink(7, 2, 1), want: 2},
		"a shrink of another generation":         {granted: 6, rule: shrink(8, 2, 4), want: unchanged},
		"a shrink before the latest grant":       {granted: 6, rule: shrink(7, 1, 4), want: unchanged},
		"a shrink on the database path":          {granted: 6, change: database, rule: shrink(7, 2, 4), want: unchanged},
		"all without a gate":                     {granted: 6, used: 2, change: database, rule: ReleasePlaces, want: 2},
		"none without a gate":                    {granted: 2, used: 2, change: database, rule: ReleasePlaces, want: unchanged},
		"no release while a gate may have given": {granted: 6, used: 2, rule: ReleasePlaces, want: unchanged},
	} {
		was := reward.CouponTemplate{
			TotalQuantity: 10, Mode: reward.ModeStream, Path: reward.PathGate, Generation: 7, Grants: 2, Version: 5,
			Live: tt.live, IssuedTotal: tt.live, Granted: tt.granted, Used: tt.used,
		}
		if tt.change != nil {
			tt.change(&was)
		}
		want := was
		if tt.want != unchanged {
			want.Granted, want.Grants, want.Version = tt.want, 3, 6
		}
		got := was
		if changed := tt.rule(&got); changed != (tt.want != unchanged) {
			t.Errorf("%s: changed %t", name, changed)
		}
		if got.Granted != want.Granted || got.Grants != want.Grants || got.Version != want.Version {
			t.Errorf("%s: granted %d in %d steps, version %d; want %d, %d, %d", name, got.Granted, got.Grants, got.Version, want.Granted, want.Grants, want.Version)
		}
	}
}

// TestWhatAGateGivesUpWithAChange checks that a lower quantity, or another mode, takes places
// only of the gate that the row knows.
func TestWhatAGateGivesUpWithAChange(t *testing.T) {
	t.Parallel()
	was := reward.CouponTemplate{
		ID: 1, Name: "a", TotalQuantity: 9, PerUserLimit: 1, Mode: reward.ModeStream, Path: reward.PathGate, WhenRedisAway: reward.FallbackDatabase,
		Generation: 7, Grants: 2, Granted: 6, Version: 5,
	}
	lower := func(total int64, s *Shrunk) TemplateChange { return TemplateChange{TotalQuantity: &total, Shrunk: s} }
	sync := func(s *Shrunk) TemplateChange { return TemplateChange{Mode: new(reward.ModeSync), Shrunk: s} }
	for name, tt := range map[string]struct {
		change  TemplateChange
		granted int64
		refused bool
	}{
		"a quantity below the places":             {lower(5, nil), 6, true},
		"a gate of another generation":            {lower(5, &Shrunk{8, 2, 2}), 6, true},
		"a gate without the latest grant":         {lower(5, &Shrunk{7, 1, 2}), 6, true},
		"a quantity below what the gate has kept": {lower(1, &Shrunk{7, 2, 2}), 2, true},
		"a quantity of what the gate has kept":    {lower(2, &Shrunk{7, 2, 2}), 2, false},
		"another mode while users are in line":    {sync(&Shrunk{7, 2, 2}), 2, true},
		"another mode":                            {sync(&Shrunk{7, 2, 0}), 0, false},
	} {
		to, err := tt.change.Apply(was)
		if err == nil {
			err = CheckChange(&was, &to, false)
		}
		if to.Granted != tt.granted || (err != nil) != tt.refused || tt.refused && !reward.HasCode(err, reward.CodeConflict) {
			t.Errorf("%s: granted %d, %v", name, to.Granted, err)
		}
	}
}
