package reward

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestConsoleHasTheSameDigits compares the digits of currencies with the console's.
func TestConsoleHasTheSameDigits(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../console/src/lib/format.ts")
	if err != nil {
		t.Fatal(err)
	}
	digits, since := make(map[string]int), make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^  (\d): '([A-Z ]+)',$`).FindAllStringSubmatch(string(text), -1) {
		for code := range strings.FieldsSeq(m[2]) {
			digits[code], err = strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if m := regexp.MustCompile(`(?m)^const since = '([A-Z ]+)';`).FindStringSubmatch(string(text)); m != nil {
		for code := range strings.FieldsSeq(m[1]) {
			since[code] = true
		}
	}
	if diff := cmp.Diff(currencyDigits, digits); diff != "" {
		t.Errorf("digits (-Go +console):\n%s", diff)
	}
	if diff := cmp.Diff(currenciesSince, since); diff != "" {
		t.Errorf("younger currencies (-Go +console):\n%s", diff)
	}
}
