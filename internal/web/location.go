package web

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"strings"
)

type mountPrefixKey struct{}

// Location returns the value of the Location header for an escaped path of the API,
// such as "/v1/promotions/1". If the Router is mounted below a prefix, for example
// with http.StripPrefix, the value starts with that prefix.
func Location(ctx context.Context, path string) string {
	prefix, _ := ctx.Value(mountPrefixKey{}).(string)
	return prefix + path
}

// withMountPrefix stores the mount prefix of a request in its context, for Location.
func withMountPrefix(r *http.Request) *http.Request {
	prefix := mountPrefix(r)
	if prefix == "" {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), mountPrefixKey{}, prefix))
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
