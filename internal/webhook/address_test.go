package webhook

import (
	"errors"
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// TestURLPattern checks that CheckURL accepts only what the pattern matches, and refuses
// of that only what the pattern cannot express.
func TestURLPattern(t *testing.T) {
	t.Parallel()
	whole := regexp.MustCompile(`^` + URLPattern + `$`)
	t.Run("Matching", func(t *testing.T) {
		t.Parallel()
		matching := rapid.StringMatching(URLPattern)
		escape := regexp.MustCompile(`%([^0-9A-Fa-f]|.[^0-9A-Fa-f]|.?$)`)
		rapid.Check(t, func(t *rapid.T) {
			address := matching.Draw(t, "URL")
			err := CheckURL(address)
			switch {
			case err == nil:
				if !whole.MatchString(address) {
					t.Fatalf("%q is accepted, but the pattern does not match it", address)
				}
			case errors.Is(err, errHost), errors.Is(err, errPort), escape.MatchString(address):
			default:
				t.Fatalf("%q: %v", address, err)
			}
		})
	})
	t.Run("Near", func(t *testing.T) {
		t.Parallel()
		near := rapid.StringMatching(`[Hh]?ttps?:/?/?[a-zA-Z0-9._*~:@%\[\]#?/ -]{0,12}(:[0-9]{0,6})?[/?#]?[!-~é ]{0,4}`)
		rapid.Check(t, func(t *rapid.T) {
			if address := near.Draw(t, "URL"); CheckURL(address) == nil && !whole.MatchString(address) {
				t.Fatalf("%q is accepted, but the pattern does not match it", address)
			}
		})
	})
}
