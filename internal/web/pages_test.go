package web

import (
	"net/http"
	"strings"
	"testing"
	"testing/fstest"
)

// TestPages: the console comes from this server alone, compressed if the browser
// can, and not again while it is the same.
func TestPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/drop/42": "text/html; charset=utf-8",
		"/assets/index.js": "text/javascript; charset=utf-8", "/assets/app.css": "text/css; charset=utf-8", "/assets/shop-logo": "image/svg+xml",
	} {
		a := b.do(t, "GET", path, nil, "Accept-Encoding", "identity")
		a.want(t, http.StatusOK)
		if got := a.header.Get("Content-Type"); got != kind {
			t.Errorf("%s: content type %q", path, got)
		}
		policy := a.header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy %q lacks %s", path, policy, want)
			}
		}
		if a := b.do(t, "GET", path, nil, "Accept-Encoding", "identity", "If-None-Match", a.header.Get("ETag")); a.status != http.StatusNotModified || a.body != "" {
			t.Errorf("%s again: %d, %d bytes", path, a.status, len(a.body))
		}
		small := b.do(t, "GET", path, nil, "Accept-Encoding", "gzip")
		if small.header.Get("Content-Encoding") != "gzip" || small.header.Get("ETag") == a.header.Get("ETag") {
			t.Errorf("%s compressed: %v", path, small.header)
		}
	}
	b.do(t, "GET", "/assets/none.js", nil).want(t, http.StatusNotFound)
	page := b.do(t, "GET", "/drop/42", nil, "Accept-Encoding", "identity").body
	if want := `<html lang="ko" data-languages="ko,en" data-shop="A &#34;&lt;shop&gt;&#34;" data-logo="image/svg+xml">`; !strings.Contains(page, want) {
		t.Errorf("the page is %s, want %s", page, want)
	}
}

func TestReadPagesOfAnIncompleteBuild(t *testing.T) {
	t.Parallel()
	if _, err := ReadPages(fstest.MapFS{"index.html": {}, "assets/index.js": {}}, Look{}); err == nil || !strings.Contains(err.Error(), "drop/index.html") {
		t.Errorf("error is %v", err)
	}
}
