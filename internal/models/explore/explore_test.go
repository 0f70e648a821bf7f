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

// walk goes to the right, or by a fault to the left of its beginning. It can end at 5.
type walk struct{ rest string }

type stride = explore.Step[int, string]

func (w walk) First() int { return 1 }

func (w walk) Next(s *int) ([]stride, string) {
	switch {
	case *s == 1:
		return []stride{{Label: "right", Next: 2}, {Label: "fault", Fault: true, Next: -1}}, ""
	case *s == 3 && w.rest == "beyond":
		return nil, "the next step falls"
	case *s > 0 && *s < 5:
		return []stride{{Label: "right", Next: *s + 1}}, ""
	default:
		return nil, ""
	}
}

func (w walk) Check(*int) string { return "" }

// ending is a walk that has to end at 5.
type ending struct{ walk }

func (ending) End(s *int) bool { return *s == 5 }

// settling is a walk that comes to rest.
type settling struct{ walk }

func (w settling) Calm(s *int) (stride, bool) {
	if *s < 0 && w.rest == "never" {
		return stride{Label: "back", Next: -3 - *s}, true
	}
	steps, _ := w.Next(s)
	if len(steps) == 0 {
		return stride{}, false
	}
	return steps[0], true
}

func (w settling) Rest(s *int) string {
	if *s < 0 && w.rest == "wrong" {
		return "it rests at the left"
	}
	return ""
}

func TestEnd(t *testing.T) {
	t.Parallel()
	got := explore.Run[int, string](t.Context(), ending{}, 1000)
	if got.Stuck != 1 || got.Breach != "there is no way to the end" || !slices.Equal(got.Path, []string{"fault"}) || got.Last != -1 {
		t.Errorf("%+v", got)
	}
	if got = explore.Run[int, string](t.Context(), ending{walk{"beyond"}}, 1000); !got.Beyond || got.Breach != "the next step falls" || got.Last != 3 {
		t.Errorf("beyond: %+v", got)
	}
}

func TestRest(t *testing.T) {
	t.Parallel()
	for rest, want := range map[string]string{"": "", "wrong": "it rests at the left", "never": "it never comes to rest"} {
		got := explore.Run[int, string](t.Context(), settling{walk{rest}}, 1000)
		if got.Breach != want || want != "" && !slices.Equal(got.Path, []string{"fault"}) || got.Complete != (want == "") {
			t.Errorf("%q: %+v", rest, got)
		}
	}
}
