package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/books"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// noCharges is the list of a provider that was never called.
type noCharges struct{}

func (noCharges) Charges(context.Context, reward.PromotionID, string) (money.ChargesPage, error) {
	return money.ChargesPage{}, nil
}

// TestRepairsAmongUploads repairs the books of promotions on SQLite while others upload
// to them: each request succeeds, or says that the database is busy.
func TestRepairsAmongUploads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.store
	b.api.cfg.Reconciler = books.New(books.Config{Store: s, Charges: noCharges{}, DispatchHorizon: time.Second, Interval: time.Hour, Metrics: obs.NewMetrics()})
	const promotions, files, lines = 3, 40, 1500
	for id := range promotions {
		b.create(t, fmt.Sprintf(`{"id":%d,"name":"Spring","type":"POINT","amount":10}`, id+1))
	}
	var uploading, repairing sync.WaitGroup
	done := make(chan struct{})
	check := func(what string, a answer, want int) {
		if busy := a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != ""; a.status != want && !busy {
			t.Errorf("%s: status %d: %s", what, a.status, a.body)
		}
	}
	for n := range files {
		uploading.Go(func() {
			var file strings.Builder
			file.WriteString("targetId\n")
			for i := range lines {
				fmt.Fprintf(&file, "%d\n", n*lines/2+i) // half of them are those of the file before
			}
			check("upload", b.upload(t, fmt.Sprintf("/v1/promotions/%d/targets", n%promotions+1), file.String()), http.StatusOK)
		})
	}
	for n := range 4 {
		repairing.Go(func() {
			for again := true; again; {
				select {
				case <-done:
					again = false // the last repair sees all uploads
				default:
				}
				body := fmt.Sprintf(`{"promotionId":%d,"repair":true}`, n%promotions+1)
				a := b.json(t, "POST", "/v1/reconciliations", body)
				check("repair", a, http.StatusCreated)
				if a.status == http.StatusCreated && !strings.Contains(a.body, `"drifts":[]`) {
					t.Errorf("uploads are drifts: %s", a.body)
				}
			}
		})
	}
	uploading.Wait()
	close(done)
	repairing.Wait()
	if t.Failed() {
		text := b.log.String()
		t.Log(text[max(0, len(text)-3000):])
	}
}
