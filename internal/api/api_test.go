package api

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/console"
	"github.com/largesse/largesse/internal/books"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

func TestMain(m *testing.M) { fixture.Main(m, unasserted) }

// bundle is an API over a database of its own, behind a server.
type bundle struct {
	store *faultyStore
	queue *fakeStreams
	kafka *fakePublisher
	shop  *fakeShop
	api   *API
	url   string
	http  *http.Client
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	log   *fixture.Buffer

	describe   sync.Once // sets what follows
	mux        *http.ServeMux
	operations map[string]*huma.Operation
}

// saver saves targets without a stream.
type saver struct{ *faultyStore }

func (s saver) Save(ctx context.Context, _ reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	return s.PayoutSave(ctx, p)
}

// newBundle returns an API without a server. Nothing is dispatched.
func newBundle(t *testing.T, edit ...func(*Config)) *bundle {
	t.Helper()
	s := openStore(t)
	b := &bundle{
		store: s, queue: newFakeStreams(), kafka: &fakePublisher{}, shop: newFakeShop(), log: &fixture.Buffer{}, dial: new(net.Dialer).DialContext,
	}
	log := fixture.Must(obs.NewLog(b.log, "info", "text"))(t)
	ids := service.NewIDs()
	hint := func(reward.PromotionID) {}
	cfg := Config{
		Texts: console.Texts,
		Uploads: campaign.NewUploads(campaign.UploadsConfig{
			Rows: s, Saver: saver{s}, IDs: ids, Hint: hint,
		}),
		DeadLetters: campaign.NewDeadLetters(campaign.DeadLettersConfig{Rows: s, Publisher: b.kafka, Hint: hint}),
		Reconciler:  &fakeReconciler{rows: s},
		Templates:   b.shop, Coupons: b.shop, Issuing: b.shop, Watch: b.shop.Watch, CouponReconciler: &fakeCouponReconciler{rows: s},
		Rows: s, IDs: ids, Streams: b.queue, Version: "1.2.3", Log: log,
	}
	for _, e := range edit {
		e(&cfg)
	}
	if cfg.Promotions == nil {
		cfg.Promotions = campaign.NewPromotions(campaign.PromotionsConfig{Store: s, IDs: ids, Hint: hint, ApprovalAbove: cfg.ApprovalAbove, Webhooks: true})
	}
	b.api = New(cfg)
	return b
}

// setup returns an API behind a real server.
func setup(t *testing.T, edit ...func(*Config)) *bundle {
	t.Helper()
	b := newBundle(t, edit...)
	srv := httptest.NewServer(b.api)
	t.Cleanup(srv.Close)
	b.url, b.http = srv.URL, srv.Client()
	return b
}

// inMemory runs a test on fake time, with an API behind a server that clients reach in
// memory.
func inMemory(t *testing.T, test func(t *testing.T, b *bundle), edit ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, in := newBundle(t, edit...), fixture.NewListener()
		srv := httptest.NewUnstartedServer(b.api)
		_ = srv.Listener.Close() // it is a socket, which fake time would not know
		srv.Listener = in
		srv.Start()
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
		transport := &http.Transport{DialContext: in.Dial}
		t.Cleanup(transport.CloseIdleConnections)
		b.dial, b.url, b.http = in.Dial, "http://localhost", &http.Client{Transport: transport}
		test(t, b)
	})
}

// fakePublisher stores the published records.
type fakePublisher struct {
	mu      sync.Mutex // protects what follows
	records []bus.Record
	away    error
}

func (p *fakePublisher) Publish(_ context.Context, records []bus.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away == nil {
		p.records = append(p.records, records...)
	}
	return p.away
}

// fakeReconciler returns a report about the command, and stores it.
type fakeReconciler struct{ rows *faultyStore }

func (f *fakeReconciler) Run(ctx context.Context, cmd books.ReconcileCommand) (store.ReconciliationReport, error) {
	five, four := int64(5), int64(4)
	d := store.Drift{PromotionID: 12345, What: "stream", Store: &five, Redis: &four, Detail: "5 QUEUED, 4 entries", Repaired: cmd.Repair}
	if cmd.PromotionID != nil {
		d.PromotionID = *cmd.PromotionID
	}
	r := store.ReconciliationReport{ID: 9, Checked: 1, Drifts: []store.Drift{d}, Skipped: []string{"charges: no list"}, At: testTime}
	row, err := r.Row()
	if err != nil {
		return r, err
	}
	return r, f.rows.ReconciliationSave(ctx, row)
}

type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request; headers are pairs.
func (b *bundle) do(t *testing.T, method, path string, body io.Reader, headers ...string) answer {
	t.Helper()
	req := fixture.Must(http.NewRequestWithContext(t.Context(), method, b.url+path, body))(t)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := b.http.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	a := answer{res.StatusCode, res.Header, string(text)}
	b.wantDescribed(t, req, a)
	return a
}

func (b *bundle) json(t *testing.T, method, path, body string) answer {
	t.Helper()
	if body == "" {
		return b.do(t, method, path, nil)
	}
	return b.do(t, method, path, strings.NewReader(body), "Content-Type", "application/json")
}

func (b *bundle) create(t *testing.T, body string) string {
	t.Helper()
	a := b.json(t, "POST", "/v1/promotions", body)
	a.want(t, http.StatusCreated)
	return a.text(t, "id")
}

func (a answer) want(t *testing.T, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
}

// wantProblem checks everything that a problem promises and returns it.
func (a answer) wantProblem(t *testing.T, status int, code string) web.Problem {
	t.Helper()
	a.want(t, status)
	var p web.Problem
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if p.Code != code || p.Status != status || p.Title == "" || p.RequestID == "" || p.RequestID != a.header.Get("X-Request-Id") {
		t.Fatalf("problem %+v, want %s; header %v", p, code, a.header)
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("content type %s", got)
	}
	asserted.Store(code, true)
	return p
}

func (a answer) object(t *testing.T) map[string]any {
	t.Helper()
	var m map[string]any
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return m
}

func (a answer) text(t *testing.T, field string) string {
	t.Helper()
	s, ok := a.object(t)[field].(string)
	if !ok {
		t.Fatalf("%s is no string: %s", field, a.body)
	}
	return s
}

func fields(p web.Problem) []string {
	var out []string
	for _, f := range p.Errors {
		out = append(out, f.Field)
	}
	return out
}
