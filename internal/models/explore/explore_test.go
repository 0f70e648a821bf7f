package explore_test

import (
	"context"
	"slices"
	"testing"

	"github.com/largesse/largesse/internal/models/explore"
)

// jugs are two jugs of 3 and 5 liters.
type jugs struct{ small, large int }

// pouring fills, empties and pours. Want is a breach in the large jug.
type pouring struct{ want int }

type pour = explore.Step[jugs, string]

func (p pouring) First() jugs { return jugs{} }

func (p pouring) Next(s *jugs) ([]pour, string) {
	a, b := min(s.small, 5-s.large), min(s.large, 3-s.small)
	return []pour{
		{Label: "fill small", Next: jugs{3, s.large}},
		{Label: "fill large", Next: jugs{s.small, 5}},
		{Label: "empty small", Next: jugs{0, s.large}},
		{Label: "empty large", Next: jugs{s.small, 0}},
		{Label: "small to large", Next: jugs{s.small - a, s.large + a}},
		{Label: "large to small", Next: jugs{s.small + b, s.large - b}},
	}, ""
}

func (p pouring) Check(s *jugs) string {
	if s.large == p.want {
		return "found"
	}
	return ""
}

func TestShortestTrace(t *testing.T) {
	t.Parallel()
	got := explore.Run[jugs, string](t.Context(), pouring{want: 4}, 1000)
	want := []string{"fill large", "large to small", "empty small", "large to small", "fill large", "large to small"}
	if got.Breach != "found" || !slices.Equal(got.Path, want) || got.Last != (jugs{3, 4}) || got.Complete {
		t.Errorf("%+v", got)
	}
}

func TestEveryState(t *testing.T) {
	t.Parallel()
	got := explore.Run[jugs, string](t.Context(), pouring{want: -1}, 1000)
	if got.States != 16 || got.Transitions != 96 || !got.Complete || got.Breach != "" {
		t.Errorf("%+v", got)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if got = explore.Run[jugs, string](ended, pouring{want: -1}, 1000); got.Complete || got.Breach != "" {
		t.Errorf("a run that is ended has complete %v, breach %q", got.Complete, got.Breach)
	}
	if got = explore.Run[jugs, string](t.Context(), pouring{want: -1}, 10); got.Complete || got.Breach != "" {
		t.Errorf("with a limit: %+v", got)
	}
}
