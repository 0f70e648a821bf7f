//go:build ci

package test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// TestKafkaHangs stops the process of Kafka in the middle of an intake. Promotions in
// the database are paid, and coupons of all modes but KAFKA are issued. Afterwards all
// records are paid, and every request of a KAFKA template has one coupon.
func TestKafkaHangs(t *testing.T) {
	t.Parallel()
	kafka := fixture.Own(t, fleet.NewKafka)
	t.Cleanup(func() { _ = kafka.Kill() }) // it may hang, and a busy machine ends it late
	r := newRig(t, servers, moneysim.Faults{LatencyMs: 5}, func(cfg *config.Config) {
		cfg.Kafka.Brokers = []string{kafka.Address()}
	})
	stream, lock := r.template(client.NewTemplate{Mode: "STREAM"}), r.template(client.NewTemplate{Mode: "SYNC"})
	topic := r.template(client.NewTemplate{Mode: "KAFKA"})
	for _, template := range []string{stream, lock, topic} {
		r.issue(template, 0, 20)
	}

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
	const records = 2000
	halfway := publish(831, records)
	r.until("831", "begun", func(now client.Promotion) bool { return now.TotalCount > 0 })
	fixture.OK(t, kafka.Hang())
	r.saysDegraded("kafka")
	meanwhile := publish(832, records)
	id, workload := r.create(200, false, client.NewPromotion{})
	r.balance(id, workload)
	for _, template := range []string{stream, lock} {
		r.issue(template, 20, 20)
	}
	_, err := r.api.IssueCoupon(t.Context(), topic, "u20", 0)
	if p, ok := errors.AsType[*client.Problem](err); !ok || p.Status != http.StatusServiceUnavailable {
		t.Errorf("a request of a KAFKA template got %v, want 503", err)
	}
	fixture.Until(t, "only kafka is degraded", func() bool { return slices.Equal(r.degraded(), []string{"kafka"}) })

	fixture.OK(t, kafka.Resume())
	fixture.Until(t, "the instance works again", func() bool { return len(r.degraded()) == 0 })
	for id, publishing := range map[int64]<-chan published{831: halfway, 832: meanwhile} {
		sent := <-publishing
		if sent.err != nil { // a publisher gives up after 30 s, and then sends all records again
			t.Log(sent.err)
			sent = <-publish(id, records)
		}
		if sent.err != nil {
			t.Fatal(sent.err)
		}
		r.balance(fmt.Sprint(id), sent.workload)
	}
	if n := r.sim.MaxChargesPerKey(); n != 1 {
		t.Errorf("a key was charged %d times", n)
	}
	r.issue(topic, 20, 20)
	for _, template := range []string{stream, lock, topic} {
		r.onePerUser(template, 40)
	}
	r.saidOnce("kafka")
}
