// Package moneysim simulates a provider's Money API. It pays once per
// idempotency key, keeps a ledger of its charges, and fails on request. It
// imports no client code of Largesse, so that a mistake in the client is not
// repeated here.
//
// Each request passes the faults in the order of this table, and the first one
// that applies decides. The column charged says what this request does to its
// key; another request may charge the key anyway.
//
// fault                 the caller sees                       charged
// away                  the connection is reset               no
// misconfiguredStatus   that status                           no
// ratePerSecond         429, Retry-After: 1                   no
// (invalid request)     400, 415, 422                         no
// resetBeforeRate       the connection is reset               no
// throttleRate          429, Retry-After: 1                   no
// latencyMs, jitterMs   no response for that time             -
// refuseRate            422 with a code                       no; a charged key is not refused
// errorRate             500                                   no
// unavailableRate       503                                   one half
// timeoutRate           no response                           one half
// lostReplyRate         the connection is closed              yes
// resetAfterRate        the connection is reset               yes
// slowDripRate          200, and an endless body              yes
// (none)                200 with the transaction key          yes
//
// duplicateRate applies in addition: the request arrives twice, and both copies
// get the same fault. The seed, the key and the number of the key's attempt
// decide which fault a request gets. An invalid request, or one that was not
// read, is no attempt.
package moneysim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	bodyMax      = 64 << 10 // bytes of a request's body
	pageSize     = 1000     // default charges per page
	pageMax      = 10_000
	retryAfter   = "1" // seconds, with each 429
	headerWithin = 10 * time.Second
	dripEvery    = 100 * time.Millisecond
)

// Config is the initial state of a simulator. The zero value is a provider
// without faults.
type Config struct {
	Faults Faults // initial faults, and those after a reset
	// Seed decides which requests get a fault: the same seed and the same
	// requests get the same faults.
	Seed uint64
}

// Server is a simulated provider. It is safe for concurrent use.
type Server struct {
	cfg     Config
	mux     *http.ServeMux
	hash    maphash.Seed
	began   time.Time
	calls   atomic.Int64 // calls of the Money API in flight
	books   atomic.Pointer[books]
	weather atomic.Pointer[weather]

	mu      sync.RWMutex // protects closed, srv, and open.Add against Close
	closed  bool
	srv     *http.Server
	open    sync.WaitGroup // counts requests and the accept loop
	stopped chan struct{}
}

// weather is the current faults.
type weather struct {
	Faults
	limit *rate.Limiter // nil: no limit
}

// Stats is the body of /stats.
type Stats struct {
	Charges       int64 `json:"charges"`       // charges made
	Requests      int64 `json:"requests"`      // charge requests received
	DuplicateKeys int64 `json:"duplicateKeys"` // requests for a key already charged
	Amount        int64 `json:"amount"`        // sum of the charges, in minor units
}

// New returns a simulator. It fails if the faults are invalid.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, mux: http.NewServeMux(), hash: maphash.MakeSeed(), began: time.Now(), stopped: make(chan struct{})}
	if err := s.SetFaults(cfg.Faults); err != nil {
		return nil, err
	}
	s.books.Store(newBooks())
	s.mux.HandleFunc("POST /v1/points/charge", s.call(func(w http.ResponseWriter, r *http.Request) { s.charge(w, r, false) }))
	s.mux.HandleFunc("POST /v1/vouchers/charge", s.call(func(w http.ResponseWriter, r *http.Request) { s.charge(w, r, true) }))
	s.mux.HandleFunc("GET /v1/transactions/{key}", s.call(s.lookup))
	s.mux.HandleFunc("GET /v1/charges", s.call(s.listPromotion))
	s.mux.HandleFunc("GET /charges", s.listAll)
	s.mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.Stats()) })
	s.mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.Faults()) })
	s.mux.HandleFunc("PUT /faults", s.putFaults)
	s.mux.HandleFunc("POST /reset", func(w http.ResponseWriter, _ *http.Request) {
		s.Reset()
		w.WriteHeader(http.StatusNoContent)
	})
	return s, nil
}

// Handler serves the simulator's endpoints until Close.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.enter() {
			panic(http.ErrAbortHandler) // like a provider that is down
		}
		defer s.open.Done()
		s.mux.ServeHTTP(w, r)
	})
}

// call counts the calls of the Money API in flight.
func (s *Server) call(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.books.Load().opened(s.calls.Add(1))
		defer s.calls.Add(-1)
		serve(w, r)
	}
}

// enter counts a request or loop that Close waits for. It reports false after
// Close.
func (s *Server) enter() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return false
	}
	s.open.Add(1)
	return true
}

// Start listens on an address (host:port; port 0 for any free one) and returns
// the actual address.
func (s *Server) Start(listen string) (addr string, err error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", listen)
	if err != nil {
		return "", fmt.Errorf("moneysim: %w", err)
	}
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: headerWithin}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.srv != nil {
		return "", errors.Join(errors.New("moneysim: already started or closed"), l.Close())
	}
	s.srv = srv
	s.open.Add(1)
	go func() {
		defer s.open.Done()
		_ = srv.Serve(l) // ends with Close
	}()
	return l.Addr().String(), nil
}

// Close closes every connection and waits for the requests. It may be called
// twice. The ledger stays readable.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stopped)
	}
	srv := s.srv
	s.mu.Unlock()
	if srv != nil {
		_ = srv.Close()
	}
	s.open.Wait()
}

// SetFaults replaces the current faults.
func (s *Server) SetFaults(f Faults) error {
	if err := f.validate(); err != nil {
		return fmt.Errorf("moneysim: %w", err)
	}
	w := &weather{Faults: f}
	if f.RatePerSecond > 0 {
		w.limit = rate.NewLimiter(rate.Limit(f.RatePerSecond), max(1, int(f.RatePerSecond/10)))
	}
	s.weather.Store(w)
	return nil
}

// Faults returns the current faults.
func (s *Server) Faults() Faults { return s.weather.Load().Faults }

// Reset forgets every charge and restores the initial faults.
func (s *Server) Reset() {
	s.books.Store(newBooks())
	_ = s.SetFaults(s.cfg.Faults) // New has validated them
}

// Stats returns the totals so far.
func (s *Server) Stats() Stats {
	b := s.books.Load()
	ledger, amount := b.events()
	return Stats{
		Charges: int64(len(ledger)), Requests: b.requests.Load(),
		DuplicateKeys: b.duplicates.Load(), Amount: amount,
	}
}

// Charges returns the number of charges of a promotion and their total.
func (s *Server) Charges(promotionID int64) (count, amount int64) {
	ledger, _ := s.books.Load().events()
	for _, c := range ledger {
		if c.promotion == promotionID {
			count++
			amount += c.amount
		}
	}
	return count, amount
}

// MaxChargesPerKey returns the largest number of charges of any key, counted
// from the ledger: 0 without any charge, and never above 1.
func (s *Server) MaxChargesPerKey() int { return s.books.Load().maxPerKey() }

// OpenMax returns the largest number of calls in flight since the last reset: charges,
// lookups and lists.
func (s *Server) OpenMax() int { return int(s.books.Load().openMax.Load()) }

// Busiest returns the largest number of charge requests within any window of
// the given length, since the last reset and among the last 5,000,000. It
// counts every received request, but no copies of DuplicateRate.
func (s *Server) Busiest(window time.Duration) int { return s.books.Load().arrivals.busiest(window) }

func (s *Server) putFaults(w http.ResponseWriter, r *http.Request) {
	var f Faults
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyMax))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		refuse(w, http.StatusBadRequest, "MALFORMED", err.Error())
		return
	}
	if err := s.SetFaults(f); err != nil {
		refuse(w, http.StatusUnprocessableEntity, "INVALID", err.Error())
		return
	}
	writeJSON(w, http.StatusOK, f)
}

// chargeItem is a charge in a list.
type chargeItem struct {
	IdempotencyKey string `json:"idempotencyKey"`
	PromotionID    string `json:"promotionId"`
	TargetID       string `json:"targetId"`
	Type           string `json:"type"` // POINT or VOUCHER
	Amount         int64  `json:"amount"`
	Currency       string `json:"currency,omitempty"`
	TransactionKey string `json:"transactionKey"`
}

// chargePage is a page of a list. The last page has no NextCursor.
type chargePage struct {
	Charges    []chargeItem `json:"charges"`
	NextCursor string       `json:"nextCursor,omitempty"`
}

func (s *Server) listAll(w http.ResponseWriter, r *http.Request) {
	s.list(w, r, func(charge) bool { return true })
}

func (s *Server) listPromotion(w http.ResponseWriter, r *http.Request) {
	if s.outOfReach(w, s.weather.Load()) {
		return
	}
	id, err := strconv.ParseInt(r.URL.Query().Get("promotionId"), 10, 64)
	if err != nil {
		refuse(w, http.StatusBadRequest, "MALFORMED", "promotionId must be a whole number")
		return
	}
	s.list(w, r, func(c charge) bool { return c.promotion == id })
}

// list writes a page of the wanted charges, in the order they were made. The
// cursor is the number of ledger events to skip.
func (s *Server) list(w http.ResponseWriter, r *http.Request, wanted func(charge) bool) {
	from, limit := 0, pageSize
	for name, p := range map[string]*int{"cursor": &from, "limit": &limit} {
		if text := r.URL.Query().Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				refuse(w, http.StatusBadRequest, "MALFORMED", name+" must be a whole number from 0")
				return
			}
			*p = n
		}
	}
	limit = min(max(limit, 1), pageMax)
	b := s.books.Load()
	ledger, _ := b.events()
	page := chargePage{Charges: []chargeItem{}}
	for i := from; i < len(ledger); i++ {
		if !wanted(ledger[i]) {
			continue
		}
		if len(page.Charges) == limit {
			page.NextCursor = strconv.Itoa(i)
			break
		}
		page.Charges = append(page.Charges, b.item(ledger[i], i))
	}
	writeJSON(w, http.StatusOK, page)
}

func (b *books) item(c charge, index int) chargeItem {
	it := chargeItem{
		IdempotencyKey: c.String(), PromotionID: strconv.FormatInt(c.promotion, 10), TargetID: strconv.FormatInt(c.target, 10),
		Type: "POINT", Amount: c.amount, Currency: c.currency, TransactionKey: b.transactionKey(uint32(index + 1)), //nolint:gosec // an index of the ledger
	}
	if c.voucher {
		it.Type = "VOUCHER"
	}
	return it
}

func (k key) String() string {
	return strconv.FormatInt(k.promotion, 10) + ":" + strconv.FormatInt(k.target, 10)
}

// parseKey parses an idempotency key in its canonical form.
func parseKey(text string) (key, bool) {
	p, t, _ := strings.Cut(text, ":")
	promotion, err := strconv.ParseInt(p, 10, 64)
	if err != nil {
		return key{}, false
	}
	target, err := strconv.ParseInt(t, 10, 64)
	k := key{promotion: promotion, target: target}
	return k, err == nil && k.String() == text
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the caller has gone
}

// problem is the body of every unsuccessful response.
type problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, problem{Code: code, Message: message})
}
