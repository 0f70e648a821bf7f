package reward

import (
	"slices"
	"strings"
	"testing"
)

func TestState(t *testing.T) {
	t.Parallel()

	t.Run("EveryStateHasANameOfItsOwnThatIsReadBack", func(t *testing.T) {
		t.Parallel()
		seen := map[string]bool{}
		for s := range StateCount {
			name := s.String()
			if name == "" || seen[name] {
				t.Errorf("state %d has the name %q, empty or another's", int16(s), name)
			}
			seen[name] = true
			for _, spelling := range []string{name, strings.ToLower(name)} {
				if got, err := ParseState(spelling); err != nil || got != s {
					t.Errorf("ParseState(%q) = %v, %v, want %v", spelling, got, err, s)
				}
			}
		}
	})

	t.Run("ThereIsNoOtherState", func(t *testing.T) {
		t.Parallel()
		for _, s := range []string{"", "PAID", "READY ", "State(9)"} {
			if got, err := ParseState(s); err == nil {
				t.Errorf("ParseState(%q) = %v, want an error", s, got)
			}
		}
		for _, s := range []State{-1, StateCount} {
			if got := s.String(); !strings.HasPrefix(got, "State(") {
				t.Errorf("the name of the unknown state %d is %q", int16(s), got)
			}
		}
	})

	t.Run("SucceededFailedAndCancelledAreFinal", func(t *testing.T) {
		t.Parallel()
		var final []State
		for s := range StateCount {
			if s.Final() {
				final = append(final, s)
			}
		}
		if want := []State{Succeeded, Failed, Cancelled}; !slices.Equal(final, want) {
			t.Errorf("final are %v, want %v", final, want)
		}
	})

	t.Run("NumbersInTheDatabaseDoNotMove", func(t *testing.T) {
		t.Parallel()
		for i, s := range []State{Ready, Queued, Retrying, Unknown, Succeeded, Failed, Cancelled} {
			if int(s) != i {
				t.Errorf("%v is %d, rows hold it as %d", s, int16(s), i)
			}
		}
	})
}

func TestCounts(t *testing.T) {
	t.Parallel()
	var c Counts
	if c.Total() != 0 || c.AmountTotal() != 0 || c.Undecided() != 0 {
		t.Errorf("empty counts add up to %d, %d, %d", c.Total(), c.AmountTotal(), c.Undecided())
	}
	for s := range StateCount {
		c.Payouts[s] = 1 << s // every sum is told from every other
		c.Amounts[s] = 100 << s
	}
	if got := c.Total(); got != 127 {
		t.Errorf("Total = %d, want 127", got)
	}
	if got := c.AmountTotal(); got != 12_700 {
		t.Errorf("AmountTotal = %d, want 12700", got)
	}
	if got := c.Undecided(); got != 1+2+4 {
		t.Errorf("Undecided = %d, want READY, QUEUED and RETRYING: 7", got)
	}
}
