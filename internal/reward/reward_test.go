package reward

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseTargetID(t *testing.T) {
	t.Parallel()
	good := []int64{0, 1, 7, 10, 1_000_000, math.MaxInt64 - 1, math.MaxInt64}
	for _, want := range good {
		s := strconv.FormatInt(want, 10)
		got, err := ParseTargetID(s)
		if err != nil || got != TargetID(want) || got.String() != s {
			t.Errorf("ParseTargetID(%q) = %v, %v", s, got, err)
		}
	}
	bad := []string{
		"", " ", "-1", "+1", "01", "00", "-0", "1 ", " 1", "1.0", "1e3", "0x1", "1_000", "abc",
		"9223372036854775808", "18446744073709551616", "１", "1\n", "1\x00", strings.Repeat("9", 10_000),
	}
	for _, s := range bad {
		got, err := ParseTargetID(s)
		if err == nil {
			t.Errorf("ParseTargetID(%q) = %d, want an error", s, got)
			continue
		}
		if !strings.HasPrefix(err.Error(), "target ID ") || len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("ParseTargetID(%q) complains unfit for a log: %q", s, err)
		}
	}
}

func FuzzParseTargetID(f *testing.F) {
	for _, s := range []string{"0", "7", "007", "-1", "9223372036854775807", "9223372036854775808", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseTargetID(s)
		if err != nil {
			if id != 0 {
				t.Fatalf("%q gave %d beside the error %v", s, id, err)
			}
			return
		}
		if id < 0 || id.String() != s {
			t.Fatalf("%q was read as %d, whose spelling is %q: two spellings for one target", s, id, id)
		}
	})
}

func TestQuote(t *testing.T) {
	t.Parallel()
	if got := Quote("a\nb"); got != `"a\nb"` {
		t.Errorf("got %s", got)
	}
	// The cut may fall inside a character.
	long := Quote(strings.Repeat("é", 100) + "\xff")
	if !utf8.ValidString(long) || len(long) > 150 || !strings.HasSuffix(long, "…") {
		t.Errorf("got %q", long)
	}
}

func TestPromotionType(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"POINT", "point", "Voucher", "VOUCHER"} {
		got, err := ParsePromotionType(s)
		if err != nil || !slices.Contains(PromotionTypes, got) || !strings.EqualFold(s, string(got)) {
			t.Errorf("ParsePromotionType(%q) = %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "COUPON", "POINT ", "ＰＯＩＮＴ"} {
		if got, err := ParsePromotionType(s); err == nil {
			t.Errorf("ParsePromotionType(%q) = %q, want an error", s, got)
		}
	}
}

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
