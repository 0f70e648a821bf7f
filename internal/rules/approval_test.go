package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func TestWhoMayApprove(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		persons, authors []string
		want             string // of the error; empty: they may
	}{
		"nobody wrote it":            {[]string{"ann"}, nil, ""},
		"somebody else wrote it":     {[]string{"ann"}, []string{"bob", "eve"}, ""},
		"she wrote it":               {[]string{"ann"}, []string{"bob", "ann"}, `"ann" wrote it: ask another person`},
		"she wrote it, in capitals":  {[]string{"ANN"}, []string{"ann"}, `"ann" wrote it`},
		"her key, made by an author": {[]string{"key", "bob"}, []string{"bob"}, `the API key of "key" was made by "bob", and "bob" wrote it`},
		"her key, made by herself":   {[]string{"key", "ann"}, []string{"bob"}, ""},
	} {
		err := CheckApprover(test.persons, test.authors, "wrote it")
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (!reward.HasCode(err, reward.CodeSamePerson) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v; %q was wanted", name, err, test.want)
		}
	}
}

// TestAQuantityNeedsTwoPeople changes a template step by step, with a limit of 100.
func TestAQuantityNeedsTwoPeople(t *testing.T) {
	t.Parallel()
	raise := func(n int64, by string) TemplateChange { return TemplateChange{TotalQuantity: &n, By: by} }
	approve := func(persons ...string) TemplateChange { return TemplateChange{Approvers: persons} }
	unlimited := raise(9000, "kim")
	unlimited.CodesAbove = -1
	type state struct {
		inForce, waits int64
		code           string
	}
	for name, steps := range map[string][]struct {
		change TemplateChange
		want   state
	}{
		"by an author":        {{raise(1000, "kim"), state{100, 1000, ""}}, {approve("KIM"), state{100, 1000, reward.CodeSamePerson}}, {approve("key", "kim"), state{100, 1000, reward.CodeSamePerson}}},
		"by the creator":      {{raise(1000, "kim"), state{100, 1000, ""}}, {approve("ann"), state{100, 1000, reward.CodeSamePerson}}},
		"by another":          {{raise(1000, "kim"), state{100, 1000, ""}}, {approve("lee"), state{1000, 0, ""}}, {approve("lee"), state{1000, 0, reward.CodeIllegalState}}},
		"below the limit":     {{raise(100, "kim"), state{100, 0, ""}}, {approve("lee"), state{100, 0, reward.CodeIllegalState}}},
		"in small steps":      {{raise(101, "kim"), state{100, 101, ""}}, {raise(102, "kim"), state{100, 102, ""}}, {raise(103, "bob"), state{100, 103, ""}}, {approve("bob"), state{100, 103, reward.CodeSamePerson}}},
		"above the approved":  {{raise(1000, "kim"), state{100, 1000, ""}}, {approve("lee"), state{1000, 0, ""}}, {raise(1001, "kim"), state{1000, 1001, ""}}, {raise(500, "kim"), state{500, 0, ""}}},
		"lower, then higher":  {{raise(1000, "kim"), state{100, 1000, ""}}, {approve("lee"), state{1000, 0, ""}}, {raise(5, "kim"), state{5, 0, ""}}, {raise(1000, "kim"), state{100, 1000, ""}}},
		"rejected":            {{raise(1000, "kim"), state{100, 1000, ""}}, {TemplateChange{Reject: true}, state{100, 0, ""}}, {TemplateChange{Reject: true}, state{100, 0, reward.CodeIllegalState}}},
		"changed meanwhile":   {{raise(1000, "kim"), state{100, 1000, ""}}, {TemplateChange{Name: new("n"), By: "lee"}, state{100, 1000, ""}}, {approve("lee"), state{100, 1000, reward.CodeSamePerson}}},
		"without a limit":     {{unlimited, state{9000, 0, ""}}},
		"too many":            {{raise(reward.TemplateQuantityMax+1, "kim"), state{50, 0, reward.CodeInvalid}}},
		"by too many authors": {{raise(1000, "kim"), state{100, 1000, ""}}, {TemplateChange{By: strings.Repeat("x", 20_000)}, state{100, 1000, ""}}, {approve("lee"), state{100, 1000, reward.CodeSamePerson}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			template := fixture.Must(NewTemplate(reward.CouponTemplate{
				ID: 1, Name: "drop", TotalQuantity: 50, PerUserLimit: 1, Mode: reward.ModeStream, WhenRedisAway: reward.FallbackWait, Authors: reward.Authors("").Add("ann"),
			}))(t)
			for i, s := range steps {
				if s.change.CodesAbove == 0 {
					s.change.CodesAbove = 100
				}
				to, err := s.change.Apply(template)
				if err == nil {
					template = to
				}
				got := state{template.TotalQuantity, template.AwaitingQuantity, ""}
				if err != nil {
					got.code = fmt.Sprint(err)
				}
				if !reward.HasCode(err, s.want.code) && s.want.code != "" || s.want.code == "" && err != nil || got.inForce != s.want.inForce || got.waits != s.want.waits {
					t.Fatalf("step %d: %+v, want %+v", i, got, s.want)
				}
			}
		})
	}
}

func TestImportsNeedTwoPeople(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		was            reward.CouponTemplate
		inForce, waits int64
		code           string
	}{
		{"below the limit", reward.CouponTemplate{TotalQuantity: 100}, 100, 0, ""},
		{"before the approval", reward.CouponTemplate{TotalQuantity: 100, AwaitingQuantity: 1000}, 100, 1000, ""},
		{"of an approved quantity", reward.CouponTemplate{TotalQuantity: 1000}, 100, 1000, ""},
		{"while more waits", reward.CouponTemplate{TotalQuantity: 1000, AwaitingQuantity: 2000}, 100, 2000, ""},
		{"after approved codes", reward.CouponTemplate{TotalQuantity: 1000, CodesImported: 1000}, 1000, 0, ""},
		{"in place of codes of cancelled coupons", reward.CouponTemplate{TotalQuantity: 1000, CodesImported: 1000, IssuedTotal: 700, Live: 600}, 900, 1000, ""},
		{"for a line within the limit", reward.CouponTemplate{TotalQuantity: 1000, Granted: 100}, 100, 1000, ""},
		{"for a line", reward.CouponTemplate{TotalQuantity: 1000, Granted: 101}, 1000, 0, reward.CodeConflict},
	} {
		err := CheckImport(&tt.was, 1000, 100)
		if err == nil {
			LimitImport(&tt.was, 100)
		}
		if tt.was.TotalQuantity != tt.inForce || tt.was.AwaitingQuantity != tt.waits || (err != nil) != (tt.code != "") || err != nil && !reward.HasCode(err, tt.code) {
			t.Errorf("%s: %d, %d wait, %v", tt.name, tt.was.TotalQuantity, tt.was.AwaitingQuantity, err)
		}
		free := reward.CouponTemplate{TotalQuantity: 1000, Granted: 1000}
		if LimitImport(&free, 0); CheckImport(&free, 1000, 0) != nil || free.TotalQuantity != 1000 {
			t.Error("without a limit, an import needs another person")
		}
	}
}

// TestTheTagIsOfWhatWaits checks that an approval of a template as somebody has seen it
// is not one of another quantity or of other codes.
func TestTheTagIsOfWhatWaits(t *testing.T) {
	t.Parallel()
	seen := reward.CouponTemplate{ID: 1, TotalQuantity: 100, AwaitingQuantity: 1000}
	tag := TemplateTag(&seen)
	more, codes, given, returned := seen, seen, seen, seen
	more.AwaitingQuantity++
	codes.CodesImported++
	given.IssuedTotal++
	returned.CodesImported, returned.CodesReturned = 1, 1
	if TemplateTag(&more) == tag || TemplateTag(&codes) == tag {
		t.Error("the tag does not change with what waits")
	}
	if TemplateTag(&given) != tag || TemplateTag(&returned) != tag {
		t.Error("the tag changes with progress")
	}
}
