package web

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

func TestDocs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.do(t, "GET", "/docs", nil)
	a.want(t, http.StatusOK)
	if got := a.header.Get("Content-Type"); got != "text/html; charset=utf-8" {
		t.Errorf("content type %q", got)
	}

	t.Run("LoadsNothingOfOthers", func(t *testing.T) {
		t.Parallel()
		if found := regexp.MustCompile(`(?i)https?://|//[a-z0-9-]+\.[a-z]|@import|(?-i:\burl\()|<(script|link|img|iframe|base)[^>]+(src|href)=["'][^d"']`).FindString(a.body); found != "" {
			t.Errorf("the page has %q", found)
		}
		for _, forbidden := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "onclick=", "style=\""} {
			if strings.Contains(a.body, forbidden) {
				t.Errorf("the page has %s: what it shows has to go into text nodes", forbidden)
			}
		}
	})

	t.Run("LetsOnlyItsOwnScriptAndStyleRun", func(t *testing.T) {
		t.Parallel()
		policy := a.header.Get("Content-Security-Policy")
		for element, directive := range map[string]string{"script": "script-src", "style": "style-src"} {
			parts := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllStringSubmatch(a.body, -1)
			if len(parts) != 1 || len(parts[0][1]) < 1000 {
				t.Fatalf("the page has %d elements %s", len(parts), element)
			}
			if want := directive + " '" + policyHash(parts[0][1]) + "';"; !strings.Contains(policy, want) {
				t.Errorf("the policy %q lacks %q", policy, want)
			}
		}
		for _, want := range []string{"default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("the policy %q lacks %s", policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") || a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("headers %v", a.header)
		}
	})
}

func TestDescriptionVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"devel": "0.0.0-dev", "": "0.0.0-dev", "v1.2.3": "1.2.3", "1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1", "v1.2.3-rc.1.0.20261128153003-51d353dffe06": "1.2.3-dev",
		"v0.0.0-20261128153003-51d353dffe06+dirty": "0.0.0-dev", "v1.2.4-0.20261128153003-51d353dffe06": "1.2.4-dev",
	} {
		if got := descriptionVersion(version); got != want {
			t.Errorf("%q is %q, want %q", version, got, want)
		}
	}
}
