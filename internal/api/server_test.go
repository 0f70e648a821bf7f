package api

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

func TestServer(t *testing.T) {
	t.Parallel()

	t.Run("AnUploadUnderWayEndsAtAStop", func(t *testing.T) {
		t.Parallel()
		own := setup(t)
		own.store.edit(1, func(v *store.PromotionView) { v.ID, v.Type, v.Amount = 1, reward.Point, 5 })
		s := fixture.Must(web.NewServer(web.ServerConfig{Listen: "127.0.0.1:0", AuthMode: auth.ModeNone}))(t)
		if err := s.Start(t.Context(), own.api.Router); err != nil {
			t.Fatal(err)
		}
		body, feed := io.Pipe()
		// A transport of its own: the shared one may hold a dead connection to
		// the same port, and a body from a pipe cannot be sent again.
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		done := make(chan int, 1)
		go func() {
			req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, "http://"+s.Addr()+"/v1/promotions/1/targets", body)
			if err != nil {
				done <- 0
				return
			}
			req.Header.Set("Content-Type", "text/csv")
			res, err := client.Do(req)
			if err != nil {
				done <- 0
				return
			}
			_ = res.Body.Close()
			done <- res.StatusCode
		}()
		if _, err := io.WriteString(feed, "targetId\n"+strings.Repeat("1\n", uploadBytesMin)); err != nil {
			t.Fatal(err)
		}
		fixture.Until(t, "the upload has begun", func() bool { defer own.store.lock()(); return own.store.gets > 0 })
		stopped := make(chan struct{})
		go func() { s.Stop(); close(stopped) }()
		fixture.Until(t, "the server drains", own.api.IsDraining)
		if _, err := io.WriteString(feed, "2\n"); err != nil {
			t.Fatal(err)
		}
		_ = feed.Close()
		if status := <-done; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		<-stopped
		if len(own.store.rows) != 2 {
			t.Errorf("%d rows", len(own.store.rows))
		}
	})
}
