package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/obs"
)

func TestLocation(t *testing.T) {
	t.Parallel()
	var got string
	router := newRouter(obs.Log{})
	router.Handle("create", "POST /v1/things/{id}", func(w http.ResponseWriter, r *http.Request) {
		got = Location(r.Context(), "/v1/things/7")
		w.WriteHeader(http.StatusCreated)
	})
	mount := newMount(t)
	mount.Open(router)
	defer mount.Close("gone")
	stripTo := func(path string) http.Handler { // a handler that rewrites any URL
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			u := *r.URL
			u.Path, u.RawPath = path, ""
			r.URL = &u
			router.ServeHTTP(w, r)
		})
	}
	const plain = "/v1/things/7"
	for name, tc := range map[string]struct {
		handler     http.Handler
		target, uri string // uri is the RequestURI, if not that of target
		want        string
	}{
		"NotMounted":           {router, "/v1/things/1", "", plain},
		"Mount":                {mount, "/v1/things/1", "", plain},
		"NoRequestURI":         {router, "/v1/things/1", "-", plain},
		"AbsoluteForm":         {router, "http://evil.example/v1/things/1", "", plain},
		"Query":                {router, "/v1/things/1?next=/rewards/v1/things/1", "", plain},
		"EscapedID":            {router, "/v1/things/a%2Fb%20c", "", plain},
		"Mounted":              {http.StripPrefix("/rewards", router), "/rewards/v1/things/1", "", "/rewards" + plain},
		"MountedMount":         {http.StripPrefix("/rewards", mount), "/rewards/v1/things/1", "", "/rewards" + plain},
		"MountedTwice":         {http.StripPrefix("/shop", http.StripPrefix("/rewards", router)), "/shop/rewards/v1/things/1?a=b", "", "/shop/rewards" + plain},
		"MountedEscapedID":     {http.StripPrefix("/rewards", router), "/rewards/v1/things/a%2Fb%20c", "", "/rewards" + plain},
		"MountedEscapedPrefix": {http.StripPrefix("/re wards", router), "/re%20wards/v1/things/1", "", "/re%20wards" + plain},
		"MountedAbsoluteForm":  {http.StripPrefix("/rewards", router), "http://evil.example/rewards/v1/things/1", "", "/rewards" + plain},
		"OtherHost":            {stripTo("/v1/things/1"), "/v1/things/1", "//evil.example/v1/things/1", plain},
		"OtherHostEscaped":     {stripTo("/v1/things/1"), "/v1/things/1", "/%2Fevil.example/v1/things/1", "/%2Fevil.example" + plain},
		"Backslash":            {stripTo("/v1/things/1"), "/v1/things/1", `/\evil.example/v1/things/1`, "/%5Cevil.example" + plain},
		"NewLine":              {stripTo("/v1/things/1"), "/v1/things/1", "/a\r\nSet-Cookie: b/v1/things/1", plain},
		"NewLineEscaped":       {stripTo("/v1/things/1"), "/v1/things/1", "/a%0D%0Ab/v1/things/1", "/a%0D%0Ab" + plain},
		"Dots":                 {stripTo("/v1/things/1"), "/v1/things/1", "/a/..//evil.example/v1/things/1", plain},
		"NoPath":               {stripTo("/v1/things/1"), "/v1/things/1", "?/v1/things/1", plain},
		"OtherScheme":          {stripTo("/v1/things/1"), "/v1/things/1", "javascript:alert(1)/v1/things/1", plain},
		"OtherPath":            {stripTo("/v1/things/1"), "/v1/things/1", "/elsewhere", plain},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, tc.target, http.NoBody)
			if tc.uri != "" {
				r.RequestURI = strings.TrimSuffix(tc.uri, "-")
			}
			got = ""
			w := httptest.NewRecorder()
			tc.handler.ServeHTTP(w, r)
			if w.Code != http.StatusCreated || got != tc.want {
				t.Errorf("Location = %q (status %d), want %q", got, w.Code, tc.want)
			}
		})
	}
}
