package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

// fakeRows stores endpoints and deliveries like the drivers, with this process's clock.
type fakeRows struct {
	Rows
	mu         sync.Mutex // protects what follows
	endpoints  map[int64]*store.WebhookEndpoint
	deliveries []*store.EndpointDelivery
	records    []store.WebhookAttemptRecord
	away       error // answer of the next record while set
}

func newFakeRows(ids ...int64) *fakeRows {
	f := &fakeRows{endpoints: map[int64]*store.WebhookEndpoint{}}
	for _, id := range ids {
		f.endpoints[id] = &store.WebhookEndpoint{ID: id, URL: fmt.Sprintf("https://%d.example/in", id), Kind: store.KindWebhook, Enabled: true, Secret: NewSecret()}
	}
	return f
}

func (f *fakeRows) add(endpoint int64, n int) { f.addEvent(endpoint, n, reward.WebhookEvents[0]) }

func (f *fakeRows) addEvent(endpoint int64, n int, event string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range n {
		f.deliveries = append(f.deliveries, &store.EndpointDelivery{
			ID: int64(len(f.deliveries) + 1), EndpointID: endpoint, Event: event, At: time.Now(), DueAt: time.Now(),
		})
	}
}

func (f *fakeRows) of(id int64) store.EndpointDelivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *f.deliveries[id-1]
}

func (f *fakeRows) endpoint(id int64) store.WebhookEndpoint {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *f.endpoints[id]
}

func due(d *store.EndpointDelivery, id int64) bool {
	return d.EndpointID == id && d.State == store.WebhookPending && !d.DueAt.After(time.Now())
}

func (f *fakeRows) WebhookEndpointsDue(context.Context) (list []store.WebhookEndpoint, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, e := range f.endpoints {
		for _, d := range f.deliveries {
			if e.Enabled && due(d, id) {
				list = append(list, *e)
				break
			}
		}
	}
	return list, nil
}

func (f *fakeRows) WebhookEndpointGet(_ context.Context, id int64, _ int) (store.WebhookEndpoint, error) {
	return f.endpoint(id), nil
}

func (f *fakeRows) WebhookDeliveryClaim(_ context.Context, id int64, limit int, lease time.Duration) (list []store.EndpointDelivery, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.deliveries {
		if due(d, id) && len(list) < limit {
			d.DueAt = time.Now().Add(lease)
			list = append(list, *d)
		}
	}
	return list, nil
}

func (f *fakeRows) WebhookDeliveryRecord(_ context.Context, a store.WebhookAttemptRecord) (disabled bool, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.away; err != nil {
		f.away = nil
		return false, err
	}
	e, d := f.endpoints[a.EndpointID], f.deliveries[a.DeliveryID-1]
	f.records = append(f.records, a)
	if e.Failures++; e.Failures == 1 {
		e.FailingSince = time.Now()
	}
	if a.Error == "" || a.Test {
		e.Failures = 0
	} else if a.DisableNow || e.Failures >= a.DisableFailures && time.Since(e.FailingSince) >= a.DisableAfter {
		e.Enabled, e.DisabledReason, disabled = false, a.DisableReason, true
	}
	d.Attempts++
	d.Tries++
	d.State, d.DueAt = a.State, time.Now().Add(a.RetryAfter)
	if d.Body == nil {
		d.Body = a.Body
	}
	return disabled, nil
}

func (f *fakeRows) WebhookDeliveryOwners(context.Context) ([]int64, error) { return nil, nil }
func (f *fakeRows) WebhookEndpointList(context.Context, int) (list []store.WebhookEndpoint, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.endpoints {
		list = append(list, *e)
	}
	return list, nil
}

func (f *fakeRows) WebhookEndpointCreate(_ context.Context, e store.WebhookEndpoint) (store.WebhookEndpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endpoints[e.ID] != nil {
		return e, reward.NewError(reward.KindConflict, reward.CodeExists, "it exists")
	}
	f.endpoints[e.ID] = &e
	return e, nil
}

// fakeReceivers replaces the network: each host responds as its script says.
type fakeReceivers struct {
	mu     sync.Mutex // protects what follows
	script map[string]func(ctx context.Context, n int) (status int, err error)
	calls  map[string][]call
	open   map[string]int
	most   map[string]int
}

type call struct {
	at     time.Time
	header http.Header
	body   string
}

func newFakeReceivers() *fakeReceivers {
	return &fakeReceivers{script: map[string]func(context.Context, int) (int, error){}, calls: map[string][]call{}, open: map[string]int{}, most: map[string]int{}}
}

func (r *fakeReceivers) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	host := req.URL.Host
	r.mu.Lock()
	n := len(r.calls[host])
	r.calls[host] = append(r.calls[host], call{time.Now(), req.Header.Clone(), string(body)})
	r.open[host]++
	r.most[host] = max(r.most[host], r.open[host])
	script := r.script[host]
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.open[host]--
	}()
	status := http.StatusOK
	if script != nil {
		if status, err = script(req.Context(), n); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: status, Body: http.NoBody}, nil
}

func (r *fakeReceivers) of(host string) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[host]
}

func always(status int) func(context.Context, int) (int, error) {
	return func(context.Context, int) (int, error) { return status, nil }
}

func never(ctx context.Context, _ int) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// deliver runs a test on fake time with n instances that deliver.
func deliver(t *testing.T, n int, rows *fakeRows, r *fakeReceivers, test func(t *testing.T)) {
	t.Helper()
	for range n {
		d := NewDeliverer(Config{Rows: rows, Notify: Notify{SlackURL: "https://slack.example/T/B/x", Languages: []string{"ko", "en"}}, Metrics: obs.NewMetrics()})
		d.transport = r
		d.Start(t.Context())
		defer d.Stop()
	}
	test(t)
}

func TestDeliverer(t *testing.T) {
	t.Parallel()

	fixture.OnFakeTime(t, "RetriesForADay", func(t *testing.T) {
		rows, r := newFakeRows(1), newFakeReceivers()
		r.script["1.example"] = always(500)
		rows.add(1, 1)
		deliver(t, 1, rows, r, func(t *testing.T) {
			time.Sleep(22 * time.Hour) // nine tenths of all pauses
			if d := rows.of(1); d.State != store.WebhookPending {
				t.Fatalf("after 22 h: %+v", d)
			}
			time.Sleep(6 * time.Hour)
			calls := r.of("1.example")
			if d := rows.of(1); d.State != store.WebhookAbandoned || len(calls) != 8 {
				t.Fatalf("%d calls, %+v", len(calls), d)
			}
			for i, want := range []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 7 * time.Hour, 10 * time.Hour} {
				if pause := calls[i+1].at.Sub(calls[i].at); pause < want*9/10 || pause > want*11/10+2*time.Second {
					t.Errorf("retry %d after %v, want %v", i, pause, want)
				}
				if calls[i+1].body != calls[0].body || calls[i+1].header.Get("Webhook-Id") != calls[0].header.Get("Webhook-Id") {
					t.Errorf("retry %d is another message", i)
				}
			}
			if !rows.endpoint(1).Enabled {
				t.Error("the endpoint is disabled after a day")
			}
		})
	})

	fixture.OnFakeTime(t, "DisablesAfterDays", func(t *testing.T) {
		rows, r := newFakeRows(1, 2), newFakeReceivers()
		r.script["1.example"] = always(500)
		r.script["2.example"] = always(http.StatusGone)
		rows.add(2, 1)
		deliver(t, 1, rows, r, func(t *testing.T) {
			for range 4 {
				rows.add(1, 1)
				if e := rows.endpoint(1); !e.Enabled {
					t.Fatalf("disabled early: %+v", e)
				}
				time.Sleep(24 * time.Hour)
			}
			if e := rows.endpoint(1); e.Enabled || e.DisabledReason != reasonFailing {
				t.Errorf("%+v", e)
			}
			if e := rows.endpoint(2); e.Enabled || e.DisabledReason != reasonGone || len(r.of("2.example")) != 1 {
				t.Errorf("%+v", e)
			}
			n := len(r.of("1.example"))
			rows.add(1, 1)
			time.Sleep(24 * time.Hour)
			if len(r.of("1.example")) != n {
				t.Error("a disabled endpoint is called")
			}
		})
	})

	fixture.OnFakeTime(t, "ATestIsSentOnce", func(t *testing.T) {
		rows, r := newFakeRows(1, 2), newFakeReceivers()
		r.script["1.example"] = always(500)
		r.script["2.example"] = always(http.StatusGone)
		rows.addEvent(1, 1, store.WebhookTest)
		rows.addEvent(2, 1, store.WebhookTest)
		deliver(t, 1, rows, r, func(t *testing.T) {
			time.Sleep(24 * time.Hour)
			for id := range int64(2) {
				calls := r.of(fmt.Sprintf("%d.example", id+1))
				if d, e := rows.of(id+1), rows.endpoint(id+1); len(calls) != 1 || d.State != store.WebhookAbandoned || !e.Enabled || e.Failures != 0 {
					t.Errorf("endpoint %d: %d calls, %+v, %+v", id+1, len(calls), d, e)
				}
			}
		})
	})

	fixture.OnFakeTime(t, "ADeadEndpointDelaysNoOther", func(t *testing.T) {
		rows, r := newFakeRows(1, 2, 3), newFakeReceivers()
		r.script["1.example"] = never
		r.script["3.example"] = never
		rows.add(1, 1000)
		rows.add(3, 1000)
		deliver(t, 1, rows, r, func(t *testing.T) {
			time.Sleep(time.Minute)
			rows.add(2, 40)
			time.Sleep(3 * time.Second)
			if n := len(r.of("2.example")); n != 40 {
				t.Errorf("%d of 40 are delivered", n)
			}
			time.Sleep(time.Hour)
			if n := len(r.of("1.example")); n > 4*70 || n < 4*40 {
				t.Errorf("%d calls of a dead endpoint in an hour", n)
			}
			if r.most["1.example"] > callsMax || r.most["2.example"] > callsMax {
				t.Errorf("calls in flight: %v", r.most)
			}
		})
	})

	fixture.OnFakeTime(t, "ADeadEndpointIsServedWhenItIsBack", func(t *testing.T) {
		rows, r := newFakeRows(1), newFakeReceivers()
		back := time.Now().Add(time.Hour)
		r.script["1.example"] = func(ctx context.Context, n int) (int, error) {
			if time.Now().Before(back) {
				return never(ctx, n)
			}
			return 204, nil
		}
		rows.add(1, 100)
		deliver(t, 1, rows, r, func(t *testing.T) {
			time.Sleep(4 * time.Hour)
			for id := int64(1); id <= 100; id++ {
				if d := rows.of(id); d.State != store.WebhookDelivered {
					t.Fatalf("%+v", d)
				}
			}
		})
	})

	fixture.OnFakeTime(t, "InstancesShare", func(t *testing.T) {
		rows, r := newFakeRows(1), newFakeReceivers()
		rows.add(1, 100)
		deliver(t, 2, rows, r, func(t *testing.T) {
			time.Sleep(time.Minute)
			if n := len(r.of("1.example")); n != 100 {
				t.Errorf("%d calls for 100 deliveries", n)
			}
		})
	})

	fixture.OnFakeTime(t, "ALostRecordIsDeliveredAgain", func(t *testing.T) {
		rows, r := newFakeRows(1), newFakeReceivers()
		rows.away = errors.New("the process was killed")
		rows.add(1, 1)
		deliver(t, 1, rows, r, func(t *testing.T) {
			time.Sleep(claimLease + 3*time.Second)
			calls := r.of("1.example")
			if len(calls) != 2 || calls[0].header.Get("Webhook-Id") != calls[1].header.Get("Webhook-Id") || rows.of(1).State != store.WebhookDelivered {
				t.Errorf("%+v", calls)
			}
		})
	})

	fixture.OnFakeTime(t, "AStopIsNoFailure", func(t *testing.T) {
		rows, r := newFakeRows(1), newFakeReceivers()
		r.script["1.example"] = never
		rows.add(1, 1)
		began := time.Now()
		deliver(t, 1, rows, r, func(*testing.T) { time.Sleep(2 * time.Second) })
		if took := time.Since(began); took > 2*time.Second+stopTimeout+time.Second || len(rows.records) != 0 {
			t.Errorf("the stop took %v, %d records", took, len(rows.records))
		}
	})

	fixture.OnFakeTime(t, "PeopleAreTold", func(t *testing.T) {
		rows, r := newFakeRows(2, 3, 4), newFakeReceivers()
		rows.endpoints[3].Kind, rows.endpoints[3].Secret, rows.endpoints[3].URL = store.KindEmail, "", ""
		deliver(t, 2, rows, r, func(t *testing.T) {
			time.Sleep(2 * time.Second)
			made := rows.endpoint(channelID)
			if made.Kind != store.KindSlack || !made.Enabled || made.URL != "" || made.Secret != "" || made.Language != "ko" {
				t.Errorf("%+v", made)
			}
			for id := range int64(4) {
				rows.addEvent(id+1, 1, store.WebhookTest)
			}
			time.Sleep(3 * time.Second)
			calls := r.of("slack.example")
			if len(calls) != 1 || calls[0].header.Get(headerSignature) != "" || !strings.Contains(calls[0].body, "테스트 메시지") || rows.of(1).State != store.WebhookDelivered {
				t.Errorf("%+v", calls)
			}
			if len(r.of("2.example")) != 1 || len(r.of("4.example")) != 1 {
				t.Error("a failing mail server delays others")
			}
			if last := rows.records[len(rows.records)-1]; rows.of(3).State != store.WebhookAbandoned || !slices.ContainsFunc(rows.records, func(a store.WebhookAttemptRecord) bool { return a.Error == errNoMail.Error() }) {
				t.Errorf("%+v", last)
			}
		})
	})

	fixture.OnFakeTime(t, "BothSecretsSign", func(t *testing.T) {
		rows, r := newFakeRows(1), newFakeReceivers()
		rows.endpoints[1].PreviousSecret = NewSecret()
		rows.addEvent(1, 1, store.WebhookTest)
		deliver(t, 1, rows, r, func(t *testing.T) {
			time.Sleep(3 * time.Second)
			got := r.of("1.example")[0]
			for _, secret := range []string{rows.endpoint(1).Secret, rows.endpoint(1).PreviousSecret} {
				library, err := standardwebhooks.NewWebhook(secret)
				if err == nil {
					err = library.VerifyIgnoringTimestamp([]byte(got.body), got.header)
				}
				if err != nil {
					t.Error(err)
				}
			}
			if want := `{"type":"webhook.test","timestamp":"2000-01-01T00:00:00Z","data":{"endpointId":"1"}}`; got.body != want {
				t.Errorf("%s, want %s", got.body, want)
			}
		})
	})
}

// TestDeliveriesOfAStore delivers the events of a database to a server, and checks what it
// receives.
func TestDeliveriesOfAStore(t *testing.T) {
	t.Parallel()
	s := storetest.OpenFile(t, filepath.Join(t.TempDir(), "largesse.db"), sqlite.Open)
	t.Cleanup(s.Close)
	bodies := make(chan string, 10)
	secret := NewSecret()
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		library, err := standardwebhooks.NewWebhook(secret)
		body, readErr := io.ReadAll(r.Body)
		if err = errors.Join(err, readErr); err == nil {
			err = library.Verify(body, r.Header)
		}
		if err != nil {
			t.Error(err)
		}
		bodies <- string(body)
	}))
	t.Cleanup(receiver.Close)
	fixture.Must(s.WebhookEndpointCreate(t.Context(), store.WebhookEndpoint{
		ID: 1, URL: receiver.URL, Events: store.WebhookEvents[1:], Enabled: true, Secret: secret, CreatedAt: time.Now(), CreatedBy: "kim",
	}))(t)
	fixture.Must(s.PromotionCreate(t.Context(), reward.Promotion{ID: 42, Name: "spring", Type: reward.Point, Currency: "EUR", CreatedAt: time.Now()}))(t)
	fixture.Must(s.PromotionMove(t.Context(), store.PromotionMoveParams{ID: 42, From: []reward.PromotionStatus{reward.Draft}, To: reward.PromotionCancelled, Now: time.Now()}))(t)
	list, err := s.WebhookDeliveryList(t.Context(), store.WebhookDeliveryListParams{EndpointID: 1, Limit: 9})
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	d := NewDeliverer(Config{Rows: s, AllowPrivate: true, Metrics: obs.NewMetrics()})
	d.Start(t.Context())
	defer d.Stop()
	want := `{"type":"promotion.cancelled","timestamp":"` + list[0].At.Format(time.RFC3339Nano) + `","data":{"id":"42","name":"spring","type":"POINT","status":"CANCELLED",` +
		`"totalCount":0,"counts":{"cancelled":0,"failed":0,"queued":0,"ready":0,"retrying":0,"succeeded":0,"unknown":0},"amountTotal":0,"amountSucceeded":0,"currency":"EUR"}}`
	if got := <-bodies; got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
}
