package api

import (
	"io"
	"strings"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

// TestAStopWaitsForUploads checks that an upload under way at a stop is taken whole.
func TestAStopWaitsForUploads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.promotion(t, 1, reward.Draft)
	s := b.serveHTTP(t, web.Limits{})
	body, feed := io.Pipe()
	done := make(chan client.UploadResult, 1)
	go func() {
		done <- b.do(t, "POST", "/v1/promotions/1/targets", body, "Content-Type", "text/csv").result(t)
	}()
	fixture.Must(io.WriteString(feed, "targetId\n"+strings.Repeat("1\n", uploadBytesMin)))(t)
	fixture.Until(t, "the upload has begun", func() bool { return len(b.api.uploads) > 0 })
	stopped := make(chan struct{})
	go func() { s.Stop(); close(stopped) }()
	fixture.Until(t, "the server drains", b.api.IsDraining)
	fixture.Must(io.WriteString(feed, "2\n"))(t)
	_ = feed.Close()
	if r := <-done; r.Accepted != 2 {
		t.Errorf("%+v", r)
	}
	<-stopped
}
