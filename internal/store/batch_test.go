package store

import (
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func TestRounds(t *testing.T) {
	t.Parallel()
	items := []PayoutID{{2, 1}, {1, 9}, {1, 3}, {1, 9}, {2, 1}, {1, 9}}
	got := Rounds(items, func(id *PayoutID) PayoutID { return *id })
	want := [][]int{{2, 1, 0}, {3, 4}, {5}}
	fixture.Equal(t, want, got)
	if got := Rounds(nil, func(id *PayoutID) PayoutID { return *id }); len(got) != 0 {
		t.Errorf("an empty batch has rounds: %v", got)
	}
}

func TestMergeRegistrations(t *testing.T) {
	t.Parallel()
	three, four := int64(3), int64(4)
	got := MergeRegistrations([]Registration{
		{ID: 7, Type: reward.Point},
		{ID: 2, Type: reward.Voucher, Started: true, ExpectedCount: &three},
		{ID: 7, Type: reward.Voucher, Started: true, ExpectedCount: &four},
		{ID: 2, Type: reward.Voucher, Started: true, ExpectedCount: &four},
		{ID: 7, Type: reward.Point, Started: true},
	})
	want := []Registration{
		{ID: 2, Type: reward.Voucher, Started: true, ExpectedCount: &three},
		{ID: 7, Type: reward.Point, Started: true},
		{ID: 7, Type: reward.Voucher, Started: true, ExpectedCount: &four},
	}
	fixture.Equal(t, want, got)
}

func TestText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                  "",
		"plain 'quoted' 🎁":  "plain 'quoted' 🎁",
		"nul\x00led":        "nulled",
		"broken \xff\xfeok": "broken \uFFFDok",
	} {
		if got := reward.SanitizeText(in); got != want {
			t.Errorf("reward.SanitizeText(%q) = %q, want %q", in, got, want)
		}
		if err := CheckText("field", in); (err == nil) != (in == want) {
			t.Errorf("CheckText(%q) = %v", in, err)
		}
	}
}
