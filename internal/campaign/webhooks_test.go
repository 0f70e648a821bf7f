package campaign

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
	"github.com/largesse/largesse/internal/webhook"
)

// hookRows stores deliveries like the drivers.
type hookRows struct {
	mu   sync.Mutex // protects the fields below
	rows []hookRow
	away bool // writes fail
	gone bool // the promotion does not exist
}

type hookRow struct {
	store.WebhookDelivery
	dueAt  time.Time
	done   bool
	status int
	detail string
}

// add adds n deliveries to a URL, due now, and returns the last one's id.
func (h *hookRows) add(address string, n int) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for range n {
		h.rows = append(h.rows, hookRow{WebhookDelivery: store.WebhookDelivery{
			ID: int64(len(h.rows) + 1), PromotionID: promotion, Event: store.EventFinished, URL: address, At: time.Now(),
		}, dueAt: time.Now()})
	}
	return int64(len(h.rows))
}

func (h *hookRows) WebhookClaim(_ context.Context, limit int, until, now time.Time) ([]store.WebhookDelivery, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []store.WebhookDelivery
	for i := range h.rows {
		if row := &h.rows[i]; !row.done && !row.dueAt.After(now) && len(list) < limit {
			row.dueAt = until
			list = append(list, row.WebhookDelivery)
		}
	}
	return list, nil
}

func (h *hookRows) change(id int64, f func(row *hookRow)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.away {
		return errInjected
	}
	f(&h.rows[id-1])
	return nil
}

func (h *hookRows) WebhookDone(_ context.Context, id int64, status int, detail string, _ time.Time) error {
	return h.change(id, func(row *hookRow) { row.done, row.status, row.detail = true, status, detail })
}

func (h *hookRows) WebhookReschedule(_ context.Context, id int64, status int, detail string, nextAt time.Time) error {
	return h.change(id, func(row *hookRow) {
		row.FailedAttempts, row.dueAt, row.status, row.detail = row.FailedAttempts+1, nextAt, status, detail
	})
}

func (h *hookRows) PromotionGet(context.Context, reward.PromotionID) (store.PromotionView, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return store.PromotionView{}, reward.NewError(reward.KindNotFound, reward.CodeNotFound, "there is no promotion 42")
	}
	v := store.PromotionView{Promotion: reward.Promotion{ID: promotion, Name: "spring", Type: reward.Point, Status: reward.Completed, Currency: "EUR"}}
	v.Counts.Payouts[reward.Succeeded], v.Counts.Amounts[reward.Succeeded] = 3, 300
	v.Counts.Payouts[reward.Failed], v.Counts.Amounts[reward.Failed] = 1, 100
	return v, nil
}

func (h *hookRows) row(id int64) hookRow {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rows[id-1]
}

func (h *hookRows) setAway(away bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.away = away
}

// receivers replaces the network: each host responds as its script says.
type receivers struct {
	mu      sync.Mutex // protects the fields below
	script  map[string]func(ctx context.Context, n int) (status int, err error)
	got     []received
	openNow map[string]int
	openMax map[string]int // by host; "" for all hosts together
}

type received struct {
	at     time.Time
	host   string
	header http.Header
	body   []byte
}

func newReceivers() *receivers {
	return &receivers{script: map[string]func(context.Context, int) (int, error){}, openNow: map[string]int{}, openMax: map[string]int{}}
}

func (r *receivers) set(host string, script func(ctx context.Context, n int) (status int, err error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script[host] = script
}

func (r *receivers) open(host string, n int) {
	for _, name := range []string{host, ""} {
		r.openNow[name] += n
		r.openMax[name] = max(r.openMax[name], r.openNow[name])
	}
}

func (r *receivers) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	n := len(r.ofLocked(req.URL.Host))
	r.got = append(r.got, received{time.Now(), req.URL.Host, req.Header, body})
	r.open(req.URL.Host, 1)
	script := r.script[req.URL.Host]
	r.mu.Unlock()
	status := http.StatusOK
	if script != nil {
		status, err = script(req.Context(), n)
	}
	r.mu.Lock()
	r.open(req.URL.Host, -1)
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("thanks"))}, nil
}

// of returns the deliveries that a host received.
func (r *receivers) of(host string) []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ofLocked(host)
}

func (r *receivers) ofLocked(host string) []received {
	var list []received
	for _, g := range r.got {
		if g.host == host {
			list = append(list, g)
		}
	}
	return list
}

func (r *receivers) count(host string) int { return len(r.of(host)) }

// most returns the most concurrent calls by host, and under "" of all hosts.
func (r *receivers) most() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.openMax)
}

// dead is a host that does not respond.
func dead(ctx context.Context, _ int) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func always(status int) func(context.Context, int) (int, error) {
	return func(context.Context, int) (int, error) { return status, nil }
}

const hookSecret = "not to be told"

func newSender(rows webhookRows, r http.RoundTripper) *Webhooks {
	w := NewWebhooks(WebhooksConfig{Rows: rows, Secret: hookSecret, AllowPrivate: true, Metrics: obs.NewMetrics()})
	if r != nil {
		w.client = r
	}
	return w
}

// hookTest runs a subtest on fake time with a running sender.
func hookTest(t *testing.T, name string, test func(t *testing.T, rows *hookRows, r *receivers, w *Webhooks)) {
	t.Helper()
	fixture.OnFakeTime(t, name, func(t *testing.T) {
		rows, r := &hookRows{}, newReceivers()
		w := newSender(rows, r)
		w.Start(t.Context())
		defer w.Stop()
		test(t, rows, r, w)
	})
}

func TestWebhookSender(t *testing.T) {
	t.Parallel()

	hookTest(t, "TellsSignedAndOnce", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		id := rows.add("https://a.example/hook", 1)
		time.Sleep(time.Hour)
		list := r.of("a.example")
		if len(list) != 1 || !rows.row(id).done || rows.row(id).status != 200 {
			t.Fatalf("%d got, %+v", len(list), rows.row(id))
		}
		got := list[0]
		if !verify(hookSecret, got.header.Get("Largesse-Signature"), got.body, got.at) {
			t.Errorf("the signature %q is not right", got.header.Get("Largesse-Signature"))
		}
		if got.header.Get("Largesse-Event") != "promotion.finished" || got.header.Get("Largesse-Delivery") != strconv.FormatInt(id, 10) || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%v", got.header)
		}
		const want = `{"id":"1","event":"promotion.finished","promotionId":"42","at":"2000-01-01T00:00:00Z","name":"spring","type":"POINT","status":"COMPLETED","totalCount":4,` +
			`"counts":{"cancelled":0,"failed":1,"queued":0,"ready":0,"retrying":0,"succeeded":3,"unknown":0},"amountTotal":400,"amountSucceeded":300,"currency":"EUR"}`
		if string(got.body) != want {
			t.Errorf("%s\nwant %s", got.body, want)
		}
	})

	hookTest(t, "TriesAgainUnderTheSameIDAndEverMoreSeldom", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		r.set("a.example", func(_ context.Context, n int) (int, error) {
			return []int{500, 302, 404, 429, 200}[min(n, 4)], nil
		})
		id := rows.add("https://a.example/hook", 1)
		time.Sleep(time.Hour)
		list := r.of("a.example")
		if len(list) != 5 || !rows.row(id).done || rows.row(id).FailedAttempts != 4 {
			t.Fatalf("%d got, %+v", len(list), rows.row(id))
		}
		for i, got := range list {
			if got.header.Get("Largesse-Delivery") != "1" || !verify(hookSecret, got.header.Get("Largesse-Signature"), got.body, got.at) {
				t.Errorf("try %d: %v", i, got.header)
			}
			if i == 0 {
				continue
			}
			pause, about := got.at.Sub(list[i-1].at), 5*time.Second<<(i-1)
			if pause < about*3/4 || pause > about*5/4+2*time.Second {
				t.Errorf("try %d after %v, want about %v", i, pause, about)
			}
		}
	})

	hookTest(t, "GivesUpAfterThreeDays", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		r.set("a.example", always(500))
		id := rows.add("https://a.example/hook", 1)
		time.Sleep(webhookAbandonAfter - 2*time.Hour)
		if rows.row(id).done {
			t.Fatalf("abandoned early: %+v", rows.row(id))
		}
		time.Sleep(4 * time.Hour)
		n := r.count("a.example")
		if row := rows.row(id); !row.done || !strings.HasPrefix(row.detail, "abandoned: ") || n < 75 || n > 120 {
			t.Errorf("%d tries, %+v", n, row)
		}
		time.Sleep(4 * time.Hour)
		if r.count("a.example") != n {
			t.Error("and tried again")
		}
	})

	hookTest(t, "GoneIsGivenUpAtOnce", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		r.set("a.example", always(http.StatusGone))
		id := rows.add("https://a.example/hook", 1)
		time.Sleep(time.Hour)
		if row := rows.row(id); !row.done || row.status != http.StatusGone || r.count("a.example") != 1 {
			t.Errorf("%+v after %d", row, r.count("a.example"))
		}
	})

	hookTest(t, "APromotionThatIsGoneIsGivenUp", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		rows.mu.Lock()
		rows.gone = true
		rows.mu.Unlock()
		id := rows.add("https://a.example/hook", 1)
		time.Sleep(time.Minute)
		if !rows.row(id).done || r.count("a.example") != 0 {
			t.Errorf("%+v", rows.row(id))
		}
	})

	hookTest(t, "ASlowReceiverIsCutOff", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		r.set("a.example", dead)
		id := rows.add("https://a.example/hook", 1)
		time.Sleep(webhook.Timeout + 3*time.Second)
		if row := rows.row(id); row.FailedAttempts != 1 || row.status != 0 || row.detail != "no response within 10s" {
			t.Errorf("%+v", row)
		}
	})

	hookTest(t, "DeadReceiversDoNotStarveOthers", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		for i := range 3 {
			host := fmt.Sprintf("dead%d.example", i)
			r.set(host, dead)
			rows.add("https://"+host+"/hook", 500) // all of them before the living one's
		}
		began := time.Now()
		last := rows.add("https://live.example/hook", 30)
		for !rows.row(last).done {
			if time.Sleep(100 * time.Millisecond); time.Since(began) > 5*time.Second {
				t.Fatalf("%d of 30 after %v", r.count("live.example"), time.Since(began))
			}
		}
		time.Sleep(10 * time.Minute)
		id := rows.add("https://live.example/hook", 1)
		time.Sleep(3 * time.Second)
		if !rows.row(id).done {
			t.Error("a late one waits for the dead")
		}
		for host, most := range r.most() {
			if host != "" && most > 1 {
				t.Errorf("%d calls at once to %s", most, host)
			}
		}
		if n := r.count("dead0.example"); n < 5 || n > 30 {
			t.Errorf("a dead host was tried %d times in ten minutes", n)
		}
	})

	hookTest(t, "WhatWaitsLongerThanItsHoldIsNotToldTwice", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		r.set("a.example", func(context.Context, int) (int, error) {
			time.Sleep(9 * time.Second)
			return 200, nil
		})
		last := rows.add("https://a.example/hook", 20)
		for !rows.row(last).done {
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		if n := r.count("a.example"); n != 20 {
			t.Errorf("20 deliveries were sent %d times", n)
		}
	})

	hookTest(t, "AtMostEightAtOnce", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		for i := range 30 {
			host := fmt.Sprintf("h%d.example", i)
			r.set(host, func(context.Context, int) (int, error) {
				time.Sleep(2 * time.Second)
				return 200, nil
			})
			rows.add("https://"+host+"/hook", 1)
		}
		time.Sleep(12 * time.Second)
		if r.most()[""] != webhookCallsMax || !rows.row(30).done {
			t.Errorf("%d at once", r.most()[""])
		}
	})

	hookTest(t, "WhatCouldNotBeNotedIsToldAgainUnderTheSameID", func(t *testing.T, rows *hookRows, r *receivers, _ *Webhooks) {
		rows.setAway(true)
		id := rows.add("https://a.example/hook", 1)
		time.Sleep(10 * time.Second)
		rows.setAway(false)
		time.Sleep(2 * time.Minute)
		list := r.of("a.example")
		if len(list) != 2 || !rows.row(id).done || list[0].header.Get("Largesse-Delivery") != list[1].header.Get("Largesse-Delivery") {
			t.Errorf("%d got, %+v", len(list), rows.row(id))
		}
	})

	hookTest(t, "AStopLetsOpenCallsEndButNotForLong", func(t *testing.T, rows *hookRows, r *receivers, w *Webhooks) {
		r.set("slow.example", func(context.Context, int) (int, error) {
			time.Sleep(2 * time.Second)
			return 200, nil
		})
		r.set("dead.example", dead)
		slow := rows.add("https://slow.example/hook", 1)
		hung := rows.add("https://dead.example/hook", 2)
		for r.count("slow.example") == 0 || r.count("dead.example") == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		began := time.Now()
		w.Stop()
		if took := time.Since(began); took > 3*time.Second+time.Second {
			t.Errorf("the stop took %v", took)
		}
		if !rows.row(slow).done || rows.row(hung-1).FailedAttempts != 0 || rows.row(hung).FailedAttempts != 0 {
			t.Errorf("%+v, %+v", rows.row(slow), rows.row(hung))
		}
		w.Start(t.Context()) // and again
	})

	fixture.OnFakeTime(t, "WithoutASecretNothingIsSent", func(t *testing.T) {
		rows, r := &hookRows{}, newReceivers()
		w := newSender(rows, r)
		w.cfg.Secret = ""
		w.Start(t.Context())
		rows.add("https://a.example/hook", 1)
		time.Sleep(time.Minute)
		w.Stop()
		if len(r.got) != 0 {
			t.Errorf("%d sent", len(r.got))
		}
	})
}

// TestABreachIsHeard sends the deliveries of a real database with the real transport.
func TestABreachIsHeard(t *testing.T) {
	t.Parallel()
	heard := make(chan webhookBody, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		var body webhookBody
		raw, err := io.ReadAll(q.Body)
		if err != nil || !verify(hookSecret, q.Header.Get("Largesse-Signature"), raw, time.Now()) || json.Unmarshal(raw, &body) != nil {
			t.Errorf("got %s, %v", raw, err)
		}
		heard <- body
	}))
	defer receiver.Close()
	rows := storetest.OpenFile(t, filepath.Join(t.TempDir(), "rows.db"), sqlite.Open)
	defer rows.Close()
	fixture.Must(rows.PromotionCreate(t.Context(), reward.Promotion{
		ID: promotion, Name: "spring", Type: reward.Point, Status: reward.Draft, CreatedAt: time.Now(), WebhookURL: receiver.URL,
	}))(t)
	for _, m := range []store.PromotionMoveParams{
		{From: []reward.PromotionStatus{reward.Draft}, To: reward.Running},
		{From: []reward.PromotionStatus{reward.Running}, To: reward.Paused, Reason: "the books do not balance", Event: store.EventBreach},
	} {
		m.ID, m.Now = promotion, time.Now()
		fixture.Must(rows.PromotionMove(t.Context(), m))(t)
	}
	w := newSender(rows, nil)
	w.Start(t.Context())
	if body := <-heard; body.Event != store.EventBreach || body.PromotionID != promotion || body.Status != string(reward.Paused) ||
		body.PauseReason != "the books do not balance" {
		t.Errorf("%+v", body)
	}
	w.Stop()
	if left, err := rows.WebhookClaim(t.Context(), 10, time.Now().Add(time.Hour), time.Now().Add(time.Hour)); err != nil || len(left) != 0 {
		t.Errorf("%+v are left, %v", left, err)
	}
}

func TestSignatureIsOfTimeAndBody(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	sig := signature("s", at, []byte(`{"a":1}`))
	// As openssl computes it: printf '1700000000.{"a":1}' | openssl dgst
	// -sha256 -hmac s
	const want = "t=1700000000,v1=ab7bd212df57f3ef4ea3c17d4a1a71d8981ef595d4cd699b62517c68d89192a2"
	if sig != want {
		t.Errorf("%s, want %s", sig, want)
	}
	good := func(secret, header, body string, now time.Time) bool {
		return verify(secret, header, []byte(body), now)
	}
	if !good("s", sig, `{"a":1}`, at.Add(time.Minute)) {
		t.Error("a right one is refused")
	}
	wrong := []bool{
		good("x", sig, `{"a":1}`, at), good("s", sig, `{"a":2}`, at), good("s", sig, `{"a":1}`, at.Add(6*time.Minute)),
		good("s", strings.Replace(sig, "17", "18", 1), `{"a":1}`, at), good("s", "", `{"a":1}`, at), good("s", "t=1700000000", `{"a":1}`, at),
	}
	if slices.Contains(wrong, true) {
		t.Errorf("wrong ones are taken: %v", wrong)
	}
}
