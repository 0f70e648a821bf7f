package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// saysDegraded waits until the instance shows a part in /readyz with a reason, in
// largesse_degraded, and in one line of its log.
func (r *rig) saysDegraded(part string) {
	r.t.Helper()
	r.eventually("/readyz names "+part+" with a reason", func() bool {
		ready, err := r.api.Ready(r.t.Context())
		return err == nil && slices.Contains(ready.Degraded, part) && explains(ready.Troubles, part)
	})
	r.eventually("the metric says "+part, func() bool { return value(r.scrape(), "largesse_degraded", part) == 1 })
	r.saidOnce(part)
}

// saidOnce requires one line for one outage of a part. With -short there may be more:
// under the race detector a part can be late before its outage.
func (r *rig) saidOnce(part string) {
	r.t.Helper()
	if n := r.logged(`"instance degraded"`, "part="+part); n != 1 && (n == 0 || !testing.Short()) {
		r.t.Errorf("%d lines say that %s is degraded, want 1", n, part)
	}
}

// explains reports whether troubles name a part with a reason.
func explains(troubles []client.Trouble, part string) bool {
	return slices.ContainsFunc(troubles, func(t client.Trouble) bool { return t.Part == part && t.Reason != "" })
}

// logged counts the lines of the log that contain all words.
func (r *rig) logged(words ...string) (n int) {
	for line := range strings.Lines(r.lines.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// template creates a template with plenty of coupons.
func (r *rig) template(t client.NewTemplate) string {
	r.t.Helper()
	t.Name, t.TotalQuantity = r.t.Name(), 1000
	made, err := r.api.CreateTemplate(r.t.Context(), t)
	if err != nil {
		r.t.Fatal(err)
	}
	return made.ID
}

// issue requests n coupons, one per user, and repeats what got a 503 or still waits.
func (r *rig) issue(template string, from, n int) {
	r.t.Helper()
	for i := range n {
		user := fmt.Sprintf("u%d", from+i)
		r.eventually("a coupon for "+user, func() bool {
			res, err := r.api.IssueCoupon(r.t.Context(), template, user, 20*time.Second)
			if p, ok := errors.AsType[*client.Problem](err); ok && p.Status == http.StatusServiceUnavailable {
				return false
			}
			if err != nil || res.Status != "ISSUED" && res.Status != "WAITING" {
				r.t.Fatalf("coupon of %s: %+v, %v", user, res, err)
			}
			return res.Status == "ISSUED"
		})
	}
}

// onePerUser checks that a template has issued one coupon to each of n users.
func (r *rig) onePerUser(template string, n int) {
	r.t.Helper()
	users := make(map[string]int)
	for c, err := range r.api.TemplateCoupons(r.t.Context(), template) {
		if err != nil {
			r.t.Fatal(err)
		}
		users[c.UserID]++
	}
	for user, coupons := range users {
		if coupons != 1 {
			r.t.Errorf("user %s has %d coupons of template %s", user, coupons, template)
		}
	}
	if len(users) != n {
		r.t.Errorf("template %s has coupons of %d users, want %d", template, len(users), n)
	}
}

// paced is a promotion whose rate decides how long it takes.
const paced, pacedRate = 600, 100

// pace pays a paced promotion, checks its books and returns how long that took.
func (r *rig) pace() time.Duration {
	r.t.Helper()
	began := time.Now()
	id, workload := r.create(paced, false, client.NewPromotion{RatePerSecond: pacedRate})
	r.balance(id, workload)
	return time.Since(began)
}

// keepsPace requires that a fault leaves a paced promotion 0.9 of the rate that another
// instance without the fault keeps at the same time: other tests take the processor from
// both. With -short it only has to be paid: the race detector leaves no processor to keep
// a rate.
func (r *rig) keepsPace(other *rig, beside string) {
	r.t.Helper()
	if testing.Short() {
		r.pace()
		return
	}
	kept := 0.0
	for range 3 {
		var paying sync.WaitGroup
		var alone time.Duration
		paying.Go(func() { alone = other.pace() })
		took := r.pace()
		if paying.Wait(); r.t.Failed() {
			return
		}
		if kept = max(kept, float64(alone)/float64(took)); kept >= 0.9 {
			break
		}
	}
	r.t.Logf("a promotion of %d at %d/s kept %.2f of its rate beside %s", paced, pacedRate, kept, beside)
	if kept < 0.9 {
		r.t.Errorf("a promotion kept %.2f of its rate beside %s, want 0.9", kept, beside)
	}
}

// TestKafkaHangs stops the process of Kafka in the middle of an intake. Promotions in
// the database are paid at their rate, and coupons of all modes but KAFKA are issued.
// Afterwards all records are paid, and every request of a KAFKA template has one coupon.
func TestKafkaHangs(t *testing.T) {
	t.Parallel()
	kafka := ownServer(t, func(in fleet.Installer) (*fleet.Server, error) { return fleet.NewKafka(t.Context(), in) })
	t.Cleanup(func() { _ = kafka.Resume() }) // before its removal
	r := newRig(t, servers("LARGESSE_TEST_REDIS"), moneysim.Faults{LatencyMs: 5}, func(cfg *config.Config) {
		cfg.Kafka.Brokers = []string{kafka.Address()}
	})
	stream, lock := r.template(client.NewTemplate{Mode: "STREAM"}), r.template(client.NewTemplate{Mode: "SYNC"})
	topic := r.template(client.NewTemplate{Mode: "KAFKA"})
	for _, template := range []string{stream, lock, topic} {
		r.issue(template, 0, 20)
	}
	other := newRig(t, servers("LARGESSE_TEST_REDIS"), moneysim.Faults{LatencyMs: 5})

	type published struct {
		workload lab.Workload
		err      error
	}
	publish := func(id int64, targets int) <-chan published {
		sent := make(chan published, 1)
		go func() {
			workload, err := r.publishing(id, targets).Publish(t.Context())
			sent <- published{workload, err}
		}()
		return sent
	}
	const records = 10_000
	halfway := publish(831, records)
	r.until("831", "begun", func(now client.Promotion) bool { return now.TotalCount > 0 })
	if err := kafka.Hang(); err != nil {
		t.Fatal(err)
	}
	r.saysDegraded("kafka")
	if now := r.until("831", "begun", func(client.Promotion) bool { return true }); now.TotalCount >= records {
		t.Fatal("Kafka hung only after all records were taken")
	}
	r.keepsPace(other, "a Kafka that hangs")
	for _, template := range []string{stream, lock} {
		r.issue(template, 20, 20)
	}
	_, err := r.api.IssueCoupon(t.Context(), topic, "u20", 0)
	if p, ok := errors.AsType[*client.Problem](err); !ok || p.Status != http.StatusServiceUnavailable {
		t.Errorf("a request of a KAFKA template got %v, want 503", err)
	}
	r.eventually("only kafka is degraded", func() bool { return slices.Equal(r.degraded(), []string{"kafka"}) })

	if err := kafka.Resume(); err != nil {
		t.Fatal(err)
	}
	r.eventually("the instance works again", func() bool { return len(r.degraded()) == 0 })
	sent := <-halfway
	if sent.err != nil { // a publisher gives up after 30 s, and then sends all records again
		t.Log(sent.err)
		sent = <-publish(831, records)
	}
	if sent.err != nil {
		t.Fatal(sent.err)
	}
	r.balance("831", sent.workload)
	if n := r.sim.MaxChargesPerKey(); n != 1 {
		t.Errorf("a key was charged %d times", n)
	}
	r.issue(topic, 20, 20)
	for _, template := range []string{stream, lock, topic} {
		r.onePerUser(template, 40)
	}
	r.saidOnce("kafka")
}

// TestTheDiskOfPostgreSQLIsFull refuses PostgreSQL all further disk in the middle of a
// promotion. What needs space fails with a reason, reads go on, and everything
// continues by itself when there is space again.
func TestTheDiskOfPostgreSQLIsFull(t *testing.T) {
	t.Parallel()
	postgres := ownServer(t, func(in fleet.Installer) (*fleet.Server, error) { return fleet.NewFullPostgres(t.Context(), in) })
	r := newRig(t, servers("LARGESSE_TEST_REDIS"), moneysim.Faults{LatencyMs: 5}, func(cfg *config.Config) {
		cfg.Database.URL = postgres.Address()
	})
	refused, err := r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "refused", Type: "POINT"})
	if err != nil {
		t.Fatal(err)
	}
	id, workload := r.create(6000, false, client.NewPromotion{RatePerSecond: 1000})
	r.until(id, "begun", func(now client.Promotion) bool { return now.Counts.Succeeded > 0 })
	if err := postgres.Fill(true); err != nil {
		t.Fatal(err)
	}
	upload := func() (client.UploadResult, error) {
		var file bytes.Buffer
		if _, err := lab.WriteTargets(&file, 5000, false); err != nil {
			t.Fatal(err)
		}
		return r.api.UploadTargets(t.Context(), refused.ID, &file, client.UploadOptions{})
	}
	_, err = upload()
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
	if err := postgres.Fill(false); err != nil {
		t.Fatal(err)
	}
	checkCharges(t, r.sim, r.balance(id, workload))
	if res, err := upload(); err != nil || res.Accepted != 5000 {
		t.Errorf("the upload after that: %+v, %v", res, err)
	}
	r.eventually("the instance works again", func() bool { return len(r.degraded()) == 0 })
	r.saidOnce("disk")
}

// TestRedisHangs makes Redis hang for the only instance. Uploads and commands go on,
// what is not dispatched of a promotion is cancelled, and coupons are issued in the
// database. What waits for a dispatch is paid afterwards.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.second.stop()
	r := p.first
	template := r.template(client.NewTemplate{})
	r.issue(template, 0, 20)
	p.redis.Hang()
	r.saysDegraded("queue")

	id, workload := r.create(500, false, client.NewPromotion{})
	unwanted, _ := r.create(5000, false, client.NewPromotion{Name: "unwanted"})
	_, paused := r.api.PausePromotion(t.Context(), id)
	_, resumed := r.api.ResumePromotion(t.Context(), id)
	_, cancelled := r.api.CancelPromotion(t.Context(), unwanted)
	if err := errors.Join(paused, resumed, cancelled); err != nil {
		t.Errorf("commands while Redis hangs: %v", err)
	}
	r.until(unwanted, "cancelled but for what is dispatched", func(now client.Promotion) bool {
		return now.Status == "CANCELLED" && now.Counts.Ready == 0 && now.Counts.Cancelled == 5000-now.Counts.Queued
	})
	r.issue(template, 20, 20)
	if got := r.degraded(); !slices.Contains(got, "queue") {
		t.Errorf("degraded: %v, want queue still", got)
	}

	p.redis.Resume()
	r.balance(id, workload)
	r.until(unwanted, "cancelled whole", func(now client.Promotion) bool {
		return now.FinishedAt != nil && now.Counts.Cancelled+now.Counts.Succeeded == 5000
	})
	r.onePerUser(template, 40)
	r.eventually("the instance works again", func() bool { return len(r.degraded()) == 0 })
}

// TestAFloodOfReadsIsRefused pays a promotion while many clients of one caller list
// payouts without a pause. Too many reads get a 429 or 503 with Retry-After, which
// largesse_http_requests_total counts. TestReadsOfLargeTables measures the payouts.
func TestAFloodOfReadsIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers("LARGESSE_TEST_REDIS"), moneysim.Faults{LatencyMs: 5})
	big, workload := r.create(5000, false, client.NewPromotion{})
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
	r.eventually("reads are refused", func() bool { return refused.Load() > 0 })
	r.pace()
	seen := r.scrape()
	if n := value(seen, "largesse_http_requests_total", "429") + value(seen, "largesse_http_requests_total", "503"); n < 1 {
		t.Errorf("largesse_http_requests_total counts %v refusals of %d", n, refused.Load())
	}
}
