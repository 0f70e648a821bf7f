package api

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/web"
)

// TestBodiesThatEndEarly sends bodies that are cut short, and chunks that cannot be
// parsed. That is the caller's fault: 400, and nothing in the log or the metrics says
// that the server failed.
func TestBodiesThatEndEarly(t *testing.T) {
	t.Parallel()
	metrics := obs.NewMetrics()
	b := setup(t, func(c *Config) { c.Metrics = metrics })
	id := b.create(t, `{"name":"x","type":"POINT","amount":5}`)
	b.serveHTTP(t, web.Limits{})
	const short, chunk = "Content-Length: 5000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nzz\r\n"
	for path, kind := range map[string]string{
		"/v1/promotions": "application/json", "/v1/promotions/" + id + "/start": "application/json",
		"/v1/coupons/42/issue": "application/json", "/v1/promotions/" + id + "/targets": "text/csv",
	} {
		for name, body := range map[string]string{"Short": short + `{"name":"x"`, "Chunk": chunk} {
			conn := b.raw(t, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n%s", path, kind, body))
			fixture.OK(t, conn.(*net.TCPConn).CloseWrite())
			answer, err := io.ReadAll(conn)
			if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || !strings.Contains(string(answer), "MALFORMED") && !strings.Contains(string(answer), "BODY_BROKEN") {
				t.Errorf("%s %s: %q, %v", path, name, answer, err)
			}
		}
	}
	page := b.do(t, "GET", "/metrics", nil).body
	if strings.Contains(page, `status="5`) || strings.Contains(b.log.String(), "request failed") {
		t.Errorf("counted as the server's fault:\n%s\n%s", page, b.log.String())
	}
}
