package test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// TestTheDiskOfPostgreSQLIsFull refuses PostgreSQL all further disk in the middle of a
// promotion. What needs space fails with a reason, reads go on, and everything
// continues by itself when there is space again.
func TestTheDiskOfPostgreSQLIsFull(t *testing.T) {
	t.Parallel()
	postgres := fixture.Own(t, fleet.NewFullPostgres)
	r := newRig(t, servers, moneysim.Faults{LatencyMs: 5}, func(cfg *config.Config) {
		cfg.Database.URL = postgres.Address()
	}, patient)
	refused := fixture.Must(r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "refused", Type: "POINT"}))(t)
	id, workload := r.create(2000, false, client.NewPromotion{RatePerSecond: 300})
	r.until(id, "begun", func(now client.Promotion) bool { return now.Counts.Succeeded > 0 })
	fixture.OK(t, postgres.Fill(true))
	upload := func() (client.UploadResult, error) {
		var file bytes.Buffer
		fixture.Must(lab.WriteTargets(&file, 1000, false))(t)
		return r.api.UploadTargets(t.Context(), refused.ID, &file, client.UploadOptions{})
	}
	_, err := upload()
	if p, ok := errors.AsType[*client.Problem](err); !ok || p.Code != "UPLOAD_INTERRUPTED" || !strings.Contains(p.Detail, "the disk of the database is full") {
		t.Errorf("an upload got %v, want UPLOAD_INTERRUPTED that names the disk", err)
	}
	r.saysDegraded("disk")
	for _, of := range []string{id, refused.ID} {
		if _, err := r.api.Promotion(t.Context(), of); err != nil {
			t.Errorf("a read while the disk is full: %v", err)
		}
	}
	for _, err := range r.api.Payouts(t.Context(), id, client.PayoutFilter{}) {
		if err != nil {
			t.Errorf("a list while the disk is full: %v", err)
		}
	}
	fixture.OK(t, postgres.Fill(false))
	checkCharges(t, r.sim, r.balance(id, workload))
	if res, err := upload(); err != nil || res.Accepted != 1000 {
		t.Errorf("the upload after that: %+v, %v", res, err)
	}
	fixture.Until(t, "the instance works again", func() bool { return len(r.degraded()) == 0 })
	r.saidOnce("disk")
}

// TestRedisIsFull lets Redis refuse every write for lack of memory. Payouts wait in
// rows, the instance says so, and everything is paid when there is memory again.
func TestRedisIsFull(t *testing.T) {
	t.Parallel()
	redis := fixture.Own(t, fleet.NewRedis)
	limit := func(bytes string) {
		t.Helper()
		c := fixture.RedisClient(t, redis.Address())
		defer c.Close()
		set := c.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", bytes).ParameterValue("maxmemory-policy", "noeviction").Build()
		fixture.OK(t, c.Do(t.Context(), set).Error())
	}
	r := newRig(t, servers, moneysim.Faults{}, func(cfg *config.Config) {
		cfg.Redis.URL, cfg.Redis.Stream.MaxLen = redis.Address(), 500
	}, patient)
	warm, first := r.create(100, false, client.NewPromotion{})
	r.balance(warm, first)
	halfway, second := r.create(1000, false, client.NewPromotion{RatePerSecond: 200})
	dispatched := r.until(halfway, "half dispatched", func(now client.Promotion) bool { return now.Counts.Succeeded > 0 && now.Counts.Queued > 100 })
	// By then what was QUEUED is in the stream.
	r.until(halfway, "a while further", func(now client.Promotion) bool { return now.Counts.Succeeded > dispatched.Counts.Succeeded+20 })
	limit("1")
	id, workload := r.create(200, false, client.NewPromotion{})
	r.saysDegraded("streams")
	// What was dispatched before is paid.
	r.until(halfway, "paid as far as it was dispatched", func(now client.Promotion) bool {
		return now.Counts.Succeeded >= dispatched.Counts.Succeeded+dispatched.Counts.Queued
	})
	limit("0")
	r.balance(id, workload)
	r.balance(halfway, second)
	fixture.Until(t, "the instance works again", func() bool { return len(r.degraded()) == 0 })
}

// TestAHangingProviderStopsNoOtherWork lets the provider answer no charge and no
// lookup. Uploads, coupons and commands go on, and the instance says what is wrong.
func TestAHangingProviderStopsNoOtherWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers, moneysim.Faults{LatencyMs: int(time.Hour.Milliseconds())})
	id, _ := r.create(200, false, client.NewPromotion{})
	r.saysDegraded("provider")
	template := r.template(client.NewTemplate{})
	r.issue(template, 0, 20)
	r.onePerUser(template, 20)
	other, workload := r.create(200, false, client.NewPromotion{Name: "uploaded meanwhile"})
	fixture.Must(r.api.PausePromotion(t.Context(), other))(t)
	r.until(other, "paused", func(p client.Promotion) bool { return p.Status == "PAUSED" })
	fixture.Must(r.api.ResumePromotion(t.Context(), other))(t)
	unwanted, _ := r.create(200, false, client.NewPromotion{Name: "unwanted"})
	if _, err := r.api.CancelPromotion(t.Context(), unwanted); err != nil {
		t.Errorf("a cancel while the provider hangs: %v", err)
	}
	r.until(unwanted, "cancelled", func(now client.Promotion) bool { return now.Status == "CANCELLED" && now.Counts.Ready == 0 })
	if got := r.degraded(); !slices.Contains(got, "provider") {
		t.Errorf("degraded: %v, want provider still", got)
	}
	fixture.OK(t, r.sim.SetFaults(moneysim.Faults{}))
	r.until(id, "settled", settled)
	r.balance(other, workload)
}

// TestAFloodOfReadsIsRefused pays a promotion while many clients of one caller list
// payouts without a pause. Too many reads get a 429 or 503 with Retry-After, which
// largesse_http_requests_total counts. TestReadsOfLargeTables measures the payouts.
func TestAFloodOfReadsIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers, moneysim.Faults{LatencyMs: 5})
	big, workload := r.create(1000, false, client.NewPromotion{})
	r.balance(big, workload)
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	var refused atomic.Int64
	for range 60 {
		readers.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.engine.Addr()+"/v1/promotions/"+big+"/payouts?limit=1000", nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Largesse-Actor", "reader")
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					continue // the end of the flood
				}
				_, err = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				switch res.StatusCode {
				case http.StatusOK:
				case http.StatusTooManyRequests, http.StatusServiceUnavailable:
					refused.Add(1)
					if after := res.Header.Get("Retry-After"); err == nil && after == "" {
						t.Errorf("a %d without Retry-After", res.StatusCode)
					}
				default:
					t.Errorf("a read got %d", res.StatusCode)
				}
			}
		})
	}
	fixture.Until(t, "reads are refused", func() bool { return refused.Load() > 0 })
	id, workload := r.create(100, false, client.NewPromotion{})
	r.balance(id, workload)
	seen := r.scrape()
	if n := value(seen, "largesse_http_requests_total", "429") + value(seen, "largesse_http_requests_total", "503"); n < 1 {
		t.Errorf("largesse_http_requests_total counts %v refusals of %d", n, refused.Load())
	}
}
