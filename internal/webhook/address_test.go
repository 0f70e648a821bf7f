package webhook

import (
	"errors"
	"regexp"
	"strings"
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

func TestCheckURL(t *testing.T) {
	t.Parallel()
	long, label := "https://hooks.example/"+strings.Repeat("x", 2000), strings.Repeat("x", 63)
	for address, word := range map[string]string{ // that the refusal has; "" = none
		"https://hooks.example/in?key=v": "", "http://Hooks.Example": "", "https://a.example?x=1": "", "http://h:1/": "", "https://h:65535": "",
		"https://xn--mnchen-3ya.example/": "", "https://1.h-2_x.example./": "", "https://93.184.216.34/x": "", "https://[2606:4700::1111]:8443/x": "",
		"https://3com.example/%7Euser/a+b;c,d=e&f@g:h!'()*[]": "", "https://" + label + ".example/": "", "http://7f3a": "",

		"http://UHqC1PiGZD*": "host", "https://a..example/": "host", "https://-a.example/": "host", "https://a-.example/": "host", "https://.example/": "host",
		"https://1.2.3.256/": "host", "https://1.2.3/": "host", "https://01.2.3.4/": "host", "http://127.1/": "host", "https://[1.2.3.4]/": "host",
		"https://[fe80::1%25eth0]/": "host", "https://a~b.example": "host", "https://" + label + "x.example/": "host",
		"https://" + strings.Repeat(label+".", 4) + "example/": "host",
		"https://h:0/": "port", "https://h:65536/": "port", "https://h:/": "port", "https://h:080/": "port", "https://h:123456": "port",
		"https://user@h/": "user", "https://u:p@h/": "user", "https://h/#top": "#", "https://h#": "#",
		"https://h/a b": "percent", "https://h/\u0007": "percent", "https://h/\u00e9": "percent", "https://m\u00fcnchen.example/": "percent", "https://h/\u007f": "percent",
		"ftp://h/": "http://", "HTTP://h/": "http://", "hooks.example": "http://", "//h/": "http://", "https://": "http://", "https:///x": "http://", "https:h": "http://",
		"https://h/%zz": "%", long: "2000",
	} {
		if err := CheckURL(address); (err != nil) != (word != "") || err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v, want %q", address, err, word)
		}
	}
}
