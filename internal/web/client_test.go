package web

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

// TestClientAddress checks that only trusted proxies can name another client, and that
// a client cannot make them name one of its choice.
func TestClientAddress(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	const forwarded, list = "Forwarded", "X-Forwarded-For"
	for _, tt := range []struct {
		peer    string
		headers [][2]string
		want    string
	}{
		{"192.0.2.7:4711", nil, "192.0.2.7"},
		{"[2001:db8::7]:4711", nil, "2001:db8::7"},
		{"[::ffff:192.0.2.7]:4711", nil, "192.0.2.7"},
		{"", nil, ""},
		{"192.0.2.7:4711", [][2]string{{list, "198.51.100.1"}, {forwarded, "for=198.51.100.1"}}, "192.0.2.7"},
		{"10.0.0.1:80", nil, "10.0.0.1"},
		{"10.0.0.1:80", [][2]string{{list, "198.51.100.1"}}, "198.51.100.1"},
		{"10.0.0.1:80", [][2]string{{list, "203.0.113.9, 198.51.100.1"}}, "198.51.100.1"},
		{"10.0.0.1:80", [][2]string{{list, "203.0.113.9, 198.51.100.1, 10.2.3.4"}}, "198.51.100.1"},
		{"10.0.0.1:80", [][2]string{{list, "203.0.113.9"}, {list, "198.51.100.1:99"}}, "198.51.100.1"},
		{"10.0.0.1:80", [][2]string{{list, "10.9.9.9, 10.2.3.4"}}, "10.9.9.9"},
		{"10.0.0.1:80", [][2]string{{list, "203.0.113.9, unknown, 10.2.3.4"}}, "10.2.3.4"},
		{"10.0.0.1:80", [][2]string{{list, "203.0.113.9, "}}, "10.0.0.1"},
		{"[fd00::1]:80", [][2]string{{forwarded, `for="[2001:db8::9]:1234";proto=https`}}, "2001:db8::9"},
		{"10.0.0.1:80", [][2]string{{forwarded, "for=203.0.113.9, For=198.51.100.1;by=10.0.0.1"}}, "198.51.100.1"},
		{"10.0.0.1:80", [][2]string{{forwarded, `for=203.0.113.9;x="`}, {forwarded, "for=198.51.100.1"}}, "198.51.100.1"},
		{"10.0.0.1:80", [][2]string{{forwarded, "for=_hidden"}}, "10.0.0.1"},
		{"10.0.0.1:80", [][2]string{{forwarded, "for=198.51.100.1"}, {list, "198.51.100.1"}}, "198.51.100.1"},
		{"10.0.0.1:80", [][2]string{{forwarded, "for=203.0.113.9"}, {list, "198.51.100.1"}}, "10.0.0.1"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = tt.peer
		for _, h := range tt.headers {
			r.Header.Add(h[0], h[1])
		}
		if got := clientAddress(r, trusted); got != tt.want {
			t.Errorf("%s %v: %q, want %q", tt.peer, tt.headers, got, tt.want)
		}
	}
}
