package reward_test

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

func TestNewCode(t *testing.T) {
	t.Parallel()
	s := reward.CodeStyle{Prefix: "MAY-", Length: 12, Alphabet: reward.AlphabetDefault}
	counts := make(map[byte]int)
	seen := make(map[string]bool)
	const codes = 20_000
	for range codes {
		code := s.NewCode()
		random, found := strings.CutPrefix(code, "MAY-")
		if !found || len(random) != 12 || seen[code] {
			t.Fatalf("code %s", code)
		}
		seen[code] = true
		for i := range len(random) {
			counts[random[i]]++
		}
	}
	for _, c := range []byte(s.Alphabet) {
		if n, want := counts[c], codes*12/len(s.Alphabet); n < want*9/10 || n > want*11/10 {
			t.Errorf("%c occurs %d times, want about %d", c, n, want)
		}
		delete(counts, c)
	}
	if len(counts) > 0 {
		t.Errorf("not of the alphabet: %v", counts)
	}
	if code := new(reward.CodeStyle).NewCode(); len(code) != 26 {
		t.Errorf("the default code %s", code)
	}
}

func TestCheckTemplateOfCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		style    reward.CodeStyle
		quantity int64
		wrong    string // field
	}{
		{"None", reward.CodeStyle{}, 1_000_000_000, ""},
		{"Default", reward.CodeStyle{Length: reward.CodeLengthDefault, Alphabet: reward.AlphabetDefault}, reward.TemplateQuantityMax, ""},
		{"DigitsEnough", reward.CodeStyle{Length: 9, Alphabet: "0123456789"}, 1000, ""},
		{"DigitsTooFew", reward.CodeStyle{Length: 8, Alphabet: "0123456789"}, 1000, "codes.length"},
		{"DigitsForOneMore", reward.CodeStyle{Length: 9, Alphabet: "0123456789"}, 1001, "codes.length"},
		{"NoLength", reward.CodeStyle{Alphabet: "0123456789"}, 1, "codes.length"},
		{"TooLong", reward.CodeStyle{Length: 65, Alphabet: "01"}, 1, "codes.length"},
		{"Space", reward.CodeStyle{Prefix: "A B", Length: 20, Alphabet: "01"}, 1, "codes.prefix"},
		{"LongPrefix", reward.CodeStyle{Prefix: strings.Repeat("a", 21), Length: 20, Alphabet: "01"}, 1, "codes.prefix"},
		{"OneCharacter", reward.CodeStyle{Length: 20, Alphabet: "0"}, 1, "codes.alphabet"},
		{"Twice", reward.CodeStyle{Length: 20, Alphabet: "0120"}, 1, "codes.alphabet"},
		{"Umlaut", reward.CodeStyle{Length: 20, Alphabet: "01ü"}, 1, "codes.alphabet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			errs := reward.CheckTemplate(&reward.CouponTemplate{Name: "x", TotalQuantity: tt.quantity, PerUserLimit: 1, Codes: tt.style})
			switch {
			case tt.wrong == "" && len(errs) > 0, tt.wrong != "" && (len(errs) != 1 || errs[0].Field != tt.wrong):
				t.Errorf("%v", errs)
			}
		})
	}
}
