package web

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"strings"
)

// Location returns the value of the Location header for an escaped path of the API,
// such as "/v1/promotions/1". If the Router is mounted below a prefix, for example
// with http.StripPrefix, the value starts with that prefix.
func Location(ctx context.Context, path string) string {
	return infoOf(ctx).mountPrefix + path
}

// mountPrefix returns the escaped path that a handler in front of the Router removed
// from the URL of a request: the path of RequestURI without its end, which is the
// path of r.URL. It returns "" if nothing was removed. The caller controls
// RequestURI, so only its path counts, never its host, and a path that is not clean,
// such as "//evil.example", counts as no prefix.
func mountPrefix(r *http.Request) string {
	full, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return ""
	}
	prefix, ok := strings.CutSuffix(full.EscapedPath(), r.URL.EscapedPath())
	if !ok || !strings.HasPrefix(prefix, "/") || path.Clean(prefix) != prefix {
		return ""
	}
	return prefix
}
