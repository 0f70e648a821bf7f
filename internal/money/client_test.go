package money

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { fixture.Main(m) }

var (
	charge1_7 = Charge{PromotionID: 1, TargetID: 7, UserID: "u7", Amount: 1000, VoucherCode: "V-1"}
	errHeld   = errors.New("the promotion is paused")
)

func pass() error { return nil }

func newClient(t testing.TB, cfg Config) *Client {
	t.Helper()
	c := fixture.Must(New(cfg))(t)
	t.Cleanup(c.Close)
	return c
}

// provider is a raw TCP server, for what an HTTP server would not do. serve
// runs once per connection, with its number from 1; the connection is closed
// after it, and a read of it fails when the test ends.
type provider struct {
	url      string
	received atomic.Int64 // bytes, over all connections
	dials    atomic.Int64
}

type providerConn struct {
	net.Conn
	p *provider
	r *bufio.Reader
}

func (c *providerConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.p.received.Add(int64(n))
	return n, err
}

// request reads one request; nil when there is none.
func (c *providerConn) request() *http.Request {
	req, err := http.ReadRequest(c.r)
	if err != nil {
		return nil
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return nil
	}
	return req
}

func (c *providerConn) answer(status int, body string) {
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

func newProvider(t testing.TB, serve func(conn *providerConn, number int64)) *provider {
	t.Helper()
	l := fixture.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	return newProviderAt(t, l, serve)
}

func newProviderAt(t testing.TB, l net.Listener, serve func(conn *providerConn, number int64)) *provider {
	t.Helper()
	p := &provider{url: "http://" + l.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex // protects open
	var open []net.Conn
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			number := p.dials.Add(1)
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				c := &providerConn{Conn: conn, p: p}
				c.r = bufio.NewReader(c)
				serve(c, number)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return p
}

// drain reads until the client closes.
func (c *providerConn) drain() { _, _ = io.Copy(io.Discard, c.r) }

// silent is a provider that never answers, and paying one that pays each request.
func silent(conn *providerConn, _ int64) { conn.drain() }

func paying(conn *providerConn, _ int64) {
	for conn.request() != nil {
		conn.answer(200, `{"transactionKey":"T1"}`)
	}
}

func expect(t testing.TB, a Answer, class reward.AnswerClass, code string) {
	t.Helper()
	if a.Class != class || a.Code != code {
		t.Errorf("answer %+v, want %s %s", a, class, code)
	}
	if (a.Err != nil) != (class == reward.AnswerUnknown || class == reward.AnswerNotSent) {
		t.Errorf("class %s with error %v", a.Class, a.Err)
	}
}

func TestClientOnTheWire(t *testing.T) {
	t.Parallel()
	type seen struct{ Method, Path, Key, Type, Body, Length string }
	got := make(chan seen, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.Method, r.URL.Path, r.Header.Get("Idempotency-Key"), r.Header.Get("Content-Type"), string(body), r.Header.Get("Content-Length")}
		_, _ = io.WriteString(w, `{"transactionKey":"T1"}`)
	}))
	defer srv.Close()
	c := newClient(t, Config{URL: srv.URL + "/money/"})
	checks := 0
	check := func() error { checks++; return nil }
	for i, call := range []func() Answer{
		func() Answer { return c.ChargePoint(t.Context(), charge1_7, check) },
		func() Answer { return c.ChargeVoucher(t.Context(), charge1_7, check) },
		func() Answer {
			euros := charge1_7
			euros.Currency = "EUR"
			return c.ChargePoint(t.Context(), euros, check)
		},
		func() Answer { return c.Lookup(t.Context(), 1, 7).Answer },
	} {
		if a := call(); a != (Answer{Class: reward.AnswerPaid, TransactionKey: "T1", Status: 200}) {
			t.Errorf("call %d: %+v", i, a)
		}
	}
	for _, want := range []seen{
		{"POST", "/money/v1/points/charge", "1:7", "application/json", `{"promotionId":"1","targetId":"7","userId":"u7","amount":1000}`, "62"},
		{"POST", "/money/v1/vouchers/charge", "1:7", "application/json", `{"promotionId":"1","targetId":"7","userId":"u7","amount":1000,"voucherCode":"V-1"}`, "82"},
		{"POST", "/money/v1/points/charge", "1:7", "application/json", `{"promotionId":"1","targetId":"7","userId":"u7","amount":1000,"currency":"EUR"}`, "79"},
		{"GET", "/money/v1/transactions/1:7", "", "", "", ""},
	} {
		fixture.Equal(t, want, <-got)
	}
	if checks != 3 {
		t.Errorf("%d checks for three charges", checks)
	}
	if len(c.slots) != 0 {
		t.Errorf("%d calls in flight after the last", len(c.slots))
	}
}

// series reads one value of the text that /metrics shows; -1 = not there.
func series(t *testing.T, m *obs.Metrics, name string) float64 {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for line := range strings.SplitSeq(w.Body.String(), "\n") {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			return fixture.Must(strconv.ParseFloat(text, 64))(t)
		}
	}
	return -1
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	const open = "largesse_provider_calls_open"
	m := obs.NewMetrics()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := series(t, m, open); n != 1 {
			t.Errorf("%v calls open during one", n)
		}
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"NONE"}`)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	c := newClient(t, Config{URL: srv.URL, Metrics: m})
	c.ChargePoint(t.Context(), charge1_7, pass)
	c.ChargePoint(t.Context(), charge1_7, func() error { return errHeld })
	c.Lookup(t.Context(), 1, 7)
	if _, err := c.Charges(t.Context(), 1, ""); !errors.Is(err, ErrNoCharges) {
		t.Errorf("a page of charges: %v", err)
	}
	c.Close()
	c.Lookup(t.Context(), 1, 7)
	for name, want := range map[string]float64{
		`largesse_provider_calls_total{class="THROTTLED"}`:        1,
		`largesse_provider_calls_total{class="UNSENT"}`:           1,
		`largesse_provider_calls_total{class="LOOKUP_NOT_FOUND"}`: 1,
		`largesse_provider_calls_total{class="LOOKUP_OPEN"}`:      1,
		`largesse_provider_calls_total{class="PAID"}`:             0,
		"largesse_provider_call_seconds_count":                    2, // what has left and is no page; a check and a close have kept the rest
		open:                                                      0,
	} {
		if got := series(t, m, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	t.Run("KeepsEveryByteFromLeaving", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t, silent)
		c := newClient(t, Config{URL: p.url})
		large := charge1_7
		large.UserID = strings.Repeat("u", 100_000)
		for i := range 20 {
			a := c.ChargePoint(t.Context(), []Charge{charge1_7, large}[i%2], func() error { return errHeld })
			expect(t, a, reward.AnswerNotSent, CodeNotAllowed)
			if !errors.Is(a.Err, errHeld) {
				t.Errorf("error %v does not wrap the check's", a.Err)
			}
		}
		// A connection is there before the provider's loop has taken it.
		fixture.Until(t, "the provider has a connection", func() bool { return p.dials.Load() > 0 })
		if n := p.received.Load(); n != 0 {
			t.Errorf("%d bytes arrived", n)
		}
	})
	t.Run("KeepsEveryByteFromLeavingOnAUsedConnection", func(t *testing.T) {
		t.Parallel()
		rest := make(chan int64, 1)
		p := newProvider(t, func(conn *providerConn, _ int64) {
			if conn.request() == nil {
				return
			}
			before := conn.p.received.Load()
			conn.answer(200, `{"transactionKey":"T1"}`)
			conn.drain()
			rest <- conn.p.received.Load() - before
		})
		c := newClient(t, Config{URL: p.url})
		expect(t, c.ChargePoint(t.Context(), charge1_7, pass), reward.AnswerPaid, "")
		reused := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused },
		})
		expect(t, c.ChargePoint(ctx, charge1_7, func() error { return errHeld }), reward.AnswerNotSent, CodeNotAllowed)
		if !reused {
			t.Error("the second call did not use the first one's connection")
		}
		if n := <-rest; n != 0 {
			t.Errorf("%d bytes arrived", n)
		}
	})
	t.Run("IsAskedOnceForALargeBody", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t, paying)
		c := newClient(t, Config{URL: p.url})
		large := charge1_7
		large.UserID = strings.Repeat("u", 100_000)
		checks := 0
		expect(t, c.ChargePoint(t.Context(), large, func() error { checks++; return nil }), reward.AnswerPaid, "")
		if checks != 1 {
			t.Errorf("%d checks", checks)
		}
	})
	t.Run("IsAskedAfterTheDial", func(t *testing.T) {
		t.Parallel()
		accepted := make(chan struct{})
		p := newProvider(t, func(conn *providerConn, _ int64) {
			close(accepted)
			if conn.request() != nil {
				conn.answer(200, `{"transactionKey":"T1"}`)
			}
		})
		c := newClient(t, Config{URL: p.url})
		a := c.ChargePoint(t.Context(), charge1_7, func() error {
			select {
			case <-accepted:
				return nil
			case <-time.After(fixture.Patience):
				return errors.New("asked without a connection")
			}
		})
		expect(t, a, reward.AnswerPaid, "")
	})
	t.Run("IsNotAskedWithoutAConnection", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, Config{URL: "http://127.0.0.1:1"})
		a := c.ChargePoint(t.Context(), charge1_7, func() error {
			t.Error("the check was asked")
			return nil
		})
		expect(t, a, reward.AnswerNotSent, CodeNotConnected)
	})
	t.Run("IsNotAskedAfterTheCallerHasGone", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t, silent)
		c := newClient(t, Config{URL: p.url})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errHeld)
		a := c.ChargePoint(ctx, charge1_7, func() error {
			t.Error("the check was asked")
			return nil
		})
		expect(t, a, reward.AnswerNotSent, CodeStopped)
		if !errors.Is(a.Err, errHeld) {
			t.Errorf("error %v does not wrap the cause", a.Err)
		}
	})
	t.Run("CountsAsSentOncePassed", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t, silent)
		c := newClient(t, Config{URL: p.url})
		ctx, cancel := context.WithCancelCause(t.Context())
		a := c.ChargePoint(ctx, charge1_7, func() error {
			cancel(errHeld) // the call ends while its check is asked
			return nil
		})
		expect(t, a, reward.AnswerUnknown, CodeStopped)
	})
	t.Run("AnAnswerFromBeforeItIsNoAnswer", func(t *testing.T) {
		t.Parallel()
		asked := make(chan struct{})
		p := newProvider(t, func(conn *providerConn, _ int64) {
			<-asked
			conn.answer(200, `{"transactionKey":"SOMEBODY_ELSE"}`)
			conn.drain()
		})
		c := newClient(t, Config{URL: p.url})
		begun := make(chan struct{})
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotFirstResponseByte: func() { close(begun) },
		})
		a := c.ChargePoint(ctx, charge1_7, func() error {
			close(asked)
			<-begun
			return nil
		})
		expect(t, a, reward.AnswerUnknown, CodeReset)
		if !errors.Is(a.Err, errEarly) {
			t.Errorf("error %v", a.Err)
		}
	})
}

func TestNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	// The Idempotency-Key makes net/http think that it may repeat the request
	// when a connection breaks that has served one before.
	t.Run("WhenTheConnectionBreaksAfterTheRequest", func(t *testing.T) {
		t.Parallel()
		for name, reset := range map[string]bool{"Closed": false, "Reset": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var requests atomic.Int64
				p := newProvider(t, func(conn *providerConn, _ int64) {
					for conn.request() != nil {
						if requests.Add(1) > 1 {
							if reset {
								_ = conn.Conn.(*net.TCPConn).SetLinger(0)
							}
							return
						}
						conn.answer(200, `{"transactionKey":"T1"}`)
					}
				})
				c := newClient(t, Config{URL: p.url})
				expect(t, c.ChargePoint(t.Context(), charge1_7, pass), reward.AnswerPaid, "")
				checks := 0
				expect(t, c.ChargePoint(t.Context(), charge1_7, func() error { checks++; return nil }), reward.AnswerUnknown, CodeReset)
				if requests.Load() != 2 || checks != 1 || p.dials.Load() != 1 {
					t.Errorf("%d requests, %d checks, %d connections for two calls", requests.Load(), checks, p.dials.Load())
				}
			})
		}
	})
	t.Run("WhenTheServerClosesConnectionsAtWill", func(t *testing.T) {
		t.Parallel()
		var mu sync.Mutex // protects requests
		requests := map[string]int{}
		p := newProvider(t, func(conn *providerConn, number int64) {
			for i := int64(0); ; i++ {
				req := conn.request()
				if req == nil {
					return
				}
				mu.Lock()
				requests[req.Header.Get("Idempotency-Key")]++
				mu.Unlock()
				if (number+i)%3 == 0 { // no answer
					return
				}
				conn.answer(200, `{"transactionKey":"T1"}`)
				if (number+i)%3 == 1 { // as a short keep-alive does
					return
				}
			}
		})
		c := newClient(t, Config{URL: p.url, MaxConcurrency: 16})
		const calls = 2000
		var wg sync.WaitGroup
		var passed, paid atomic.Int64
		for w := range 16 {
			wg.Go(func() {
				for i := range calls / 16 {
					ch := charge1_7
					ch.TargetID = reward.TargetID(w*calls + i)
					var sent bool
					a := c.ChargePoint(t.Context(), ch, func() error { passed.Add(1); sent = true; return nil })
					switch {
					case a.Class == reward.AnswerPaid:
						paid.Add(1)
					case a.Class == reward.AnswerUnknown && sent, a.Class == reward.AnswerNotSent && !sent:
					default:
						t.Errorf("sent %t, answer %+v", sent, a)
					}
				}
			})
		}
		wg.Wait()
		mu.Lock()
		defer mu.Unlock()
		for key, n := range requests {
			if n != 1 {
				t.Errorf("%s was sent %d times", key, n)
			}
		}
		if int64(len(requests)) > passed.Load() {
			t.Errorf("%d requests, only %d checks passed", len(requests), passed.Load())
		}
		if paid.Load() == 0 {
			t.Error("no call was answered")
		}
	})
	t.Run("WithALongBody", func(t *testing.T) {
		t.Parallel()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprintf(w, `{"code":"CLOSED","trace":%q}`, strings.Repeat("x", answerMax))
		}))
		defer srv.Close()
		c := newClient(t, Config{URL: srv.URL})
		if a := c.ChargePoint(t.Context(), charge1_7, pass); a.Class != reward.AnswerMisconfigured || !a.OnePayee || !strings.Contains(a.Message, "longer than 64 KiB and was cut") {
			t.Errorf("answer %+v", a)
		}
	})
	t.Run("WhenItIsRedirected", func(t *testing.T) {
		t.Parallel()
		var requests atomic.Int64
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}))
		defer srv.Close()
		c := newClient(t, Config{URL: srv.URL})
		if a := c.ChargePoint(t.Context(), charge1_7, pass); a.Class != reward.AnswerMisconfigured || a.Status != 307 {
			t.Errorf("answer %+v", a)
		}
		if requests.Load() != 1 {
			t.Errorf("%d requests", requests.Load())
		}
	})
	t.Run("EvenIfTheTransportTried", func(t *testing.T) {
		t.Parallel()
		checks := 0
		call := &call{check: func() error { checks++; return nil }, timeout: time.Minute, cancel: func(error) {}}
		first, second := &gatedConn{}, &gatedConn{}
		if err := errors.Join(call.leave(first), call.leave(first)); err != nil {
			t.Fatalf("first write: %v", err)
		}
		if err := call.leave(second); !errors.Is(err, errSentTwice) {
			t.Errorf("second connection: %v", err)
		}
		if sent, _ := call.end(); !sent || checks != 1 {
			t.Errorf("sent %t, %d checks", sent, checks)
		}
		if err := call.leave(first); !errors.Is(err, errCallOver) {
			t.Errorf("after the end: %v", err)
		}
		if _, err := new(gatedConn).Write(nil); !errors.Is(err, errNoCall) {
			t.Errorf("a write without a call: %v", err)
		}
	})
}

// TestTimeout runs on fake time, with a provider in memory.
func TestTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	for name, tc := range map[string]struct {
		serve func(conn *providerConn, number int64)
		test  func(t *testing.T, c *Client)
		takes time.Duration
	}{
		"CutsSilence": {
			serve: silent,
			test: func(t *testing.T, c *Client) {
				expect(t, c.ChargePoint(t.Context(), charge1_7, pass), reward.AnswerUnknown, CodeTimeout)
				l := c.Lookup(t.Context(), 1, 7)
				expect(t, l.Answer, reward.AnswerUnknown, CodeTimeout)
				if l.Found || l.NotFound {
					t.Errorf("lookup: %+v", l)
				}
			},
			takes: 2 * timeout,
		},
		"CutsADrippingBody": {
			serve: func(conn *providerConn, _ int64) {
				if conn.request() == nil {
					return
				}
				_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
				for ; err == nil; time.Sleep(10 * time.Millisecond) {
					_, err = io.WriteString(conn, " ")
				}
			},
			test: func(t *testing.T, c *Client) {
				a := c.ChargePoint(t.Context(), charge1_7, pass)
				expect(t, a, reward.AnswerUnknown, CodeTimeout)
				if a.Status != 200 {
					t.Errorf("status %d", a.Status)
				}
			},
			takes: timeout,
		},
		"RunsFromLeaving": {
			serve: paying,
			test: func(t *testing.T, c *Client) {
				a := c.ChargePoint(t.Context(), charge1_7, func() error {
					time.Sleep(2 * timeout)
					return nil
				})
				expect(t, a, reward.AnswerPaid, "")
			},
			takes: 2 * timeout,
		},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			in := fixture.NewListener()
			newProviderAt(t, in, tc.serve)
			c := newClient(t, Config{URL: "http://pay.example", Timeout: timeout})
			c.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := in.Dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &gatedConn{Conn: conn}, nil
			}
			began := time.Now()
			tc.test(t, c)
			if took := time.Since(began); took != tc.takes {
				t.Errorf("took %v, want %v", took, tc.takes)
			}
		})
	}
	t.Run("TheCallersEndIsNotATimeout", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		p := newProvider(t, func(conn *providerConn, _ int64) {
			if conn.request() != nil {
				cancel(errHeld)
			}
			conn.drain()
		})
		c := newClient(t, Config{URL: p.url})
		a := c.ChargePoint(ctx, charge1_7, pass)
		expect(t, a, reward.AnswerUnknown, CodeStopped)
		if !errors.Is(a.Err, errHeld) {
			t.Errorf("error %v does not wrap the cause", a.Err)
		}
	})
}

// TestMessagesNameNoAddress: what everybody may read of a payout says why there was no
// response; the error, which is logged, has its cause with the addresses.
func TestMessagesNameNoAddress(t *testing.T) {
	t.Parallel()
	closing := newProvider(t, func(conn *providerConn, _ int64) { conn.request() })
	babbling := newProvider(t, func(conn *providerConn, _ int64) {
		conn.request()
		_, _ = conn.Write([]byte("SSH-2.0-OpenSSH\r\n"))
	})
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for name, test := range map[string]struct{ url, want string }{
		"Nobody":      {"http://127.0.0.1:1", "not sent: the provider refused the connection"},
		"AnUnknownCA": {secure.URL, "not sent: the TLS certificate of the provider is signed by an unknown authority"},
		"AClosedOne":  {closing.url, "sent, no response: the provider closed the connection without a response"},
		"NoHTTP":      {babbling.url, "sent, no response: the response of the provider is not HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, Config{URL: test.url})
			a := c.ChargePoint(t.Context(), charge1_7, pass)
			found := c.Lookup(t.Context(), 1, 7)
			for _, a := range []Answer{a, found.Answer} {
				if a.Message != test.want {
					t.Errorf("the message is %q, want %q", a.Message, test.want)
				}
			}
			if name == "Nobody" && !strings.Contains(a.Err.Error(), "127.0.0.1:1") {
				t.Errorf("the error for the log, %v, does not name the address", a.Err)
			}
		})
	}
}

func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		raw   string
		class reward.AnswerClass
		code  string
	}{
		"HeadersThatBreakOff": {"HTTP/1.1 200 OK\r\nContent-Le", reward.AnswerUnknown, CodeReset},
		"ABodyThatBreaksOff":  {"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"transactionKey\":\"T1\"}", reward.AnswerUnknown, CodeReset},
		"ARefusalThatBreaks":  {"HTTP/1.1 422 X\r\nContent-Length: 50\r\n\r\n{\"code\":\"C\"}", reward.AnswerUnknown, CodeReset},
		"AnEndlessHeader":     {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 200<<10), reward.AnswerUnknown, CodeReset},
		"AHugeBody":           {"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n{\"transactionKey\":\"T1\",\"x\":\"" + strings.Repeat("x", 9<<20), reward.AnswerUnknown, CodeNoKey},
		"AHugePage":           {"HTTP/1.1 502 X\r\n\r\n" + strings.Repeat("<p>\x00\xff", 1<<18), reward.AnswerFailed, "HTTP_502"},
		"InterimAnswersFirst": {"HTTP/1.1 102 X\r\n\r\nHTTP/1.1 422 X\r\nContent-Length: 12\r\n\r\n{\"code\":\"C\"}", reward.AnswerRefused, "C"},
		"ASwitchOfProtocols":  {"HTTP/1.1 101 X\r\nUpgrade: y\r\nConnection: Upgrade\r\n\r\n", reward.AnswerUnknown, "HTTP_101"},
		"ABodyWithoutALength": {"HTTP/1.1 422 X\r\nConnection: close\r\n\r\n{\"code\":\"C\"}", reward.AnswerRefused, "C"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, func(conn *providerConn, _ int64) {
				if conn.request() != nil {
					_, _ = io.WriteString(conn, c.raw)
				}
			})
			client := newClient(t, Config{URL: p.url})
			a := client.ChargePoint(t.Context(), charge1_7, pass)
			expect(t, a, c.class, c.code)
			if len(a.Message) > textMax || strings.ContainsRune(a.Message, 0) {
				t.Errorf("message %q", a.Message)
			}
		})
	}
}

func TestMaxConcurrency(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
		_, _ = io.WriteString(w, `{"transactionKey":"T1"}`)
	}))
	defer srv.Close()
	c := newClient(t, Config{URL: srv.URL, MaxConcurrency: 2})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { expect(t, c.ChargePoint(t.Context(), charge1_7, pass), reward.AnswerPaid, "") })
		<-arrived
	}
	if n := len(c.slots); n != 2 {
		t.Errorf("%d calls in flight, want 2", n)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	held := make(chan Answer, 1)
	go func() {
		held <- c.ChargePoint(ctx, charge1_7, func() error {
			t.Error("a third call left")
			return nil
		})
	}()
	cancel(errHeld)
	a := <-held
	expect(t, a, reward.AnswerNotSent, CodeStopped)
	if !errors.Is(a.Err, errHeld) {
		t.Errorf("error %v", a.Err)
	}
	third := make(chan Answer, 1)
	wg.Go(func() { third <- c.ChargePoint(t.Context(), charge1_7, pass) })
	close(release)
	expect(t, <-third, reward.AnswerPaid, "")
	wg.Wait()
	if n := len(c.slots); n != 0 {
		t.Errorf("%d calls in flight after the last", n)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	p := newProvider(t, paying)
	c := newClient(t, Config{URL: p.url, MaxConcurrency: 1})
	expect(t, c.ChargePoint(t.Context(), charge1_7, pass), reward.AnswerPaid, "")
	c.slots <- struct{}{} // another call in flight
	waiting := make(chan Answer, 1)
	go func() { waiting <- c.ChargePoint(t.Context(), charge1_7, pass) }()
	c.Close()
	c.Close()
	a := <-waiting
	expect(t, a, reward.AnswerNotSent, CodeStopped)
	if !errors.Is(a.Err, errClosed) {
		t.Errorf("error %v", a.Err)
	}
	<-c.slots
	if l := c.Lookup(t.Context(), 1, 7); l.Found || l.NotFound || l.Answer.Class != reward.AnswerNotSent {
		t.Errorf("lookup after Close: %+v", l)
	}
}

// TestReasons checks that people see the words of the settings, and that the code stays.
func TestReasons(t *testing.T) {
	t.Parallel()
	body := make(chan string, 2)
	p := newProvider(t, func(conn *providerConn, _ int64) {
		if conn.request() != nil {
			text := <-body
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 422 X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		}
	})
	c := newClient(t, Config{URL: p.url, Reasons: "\n LIMIT : over the limit: 한도 초과\nE:1: closed\nHTTP_422: later"})
	for code, want := range map[string]string{"LIMIT": "over the limit: 한도 초과", "E:1": "closed", "OTHER": "E18"} {
		body <- fmt.Sprintf(`{"code":%q,"message":"E18"}`, code)
		if a := c.ChargePoint(t.Context(), charge1_7, pass); a.Message != want || a.Code != code || a.Class != reward.AnswerRefused {
			t.Errorf("%s: %+v, want the message %q", code, a, want)
		}
	}
	body <- `{"code":"LIMIT","message":"E18"}`
	if r := c.Lookup(t.Context(), 1, 7); r.Answer.Message != "later" {
		t.Errorf("of a lookup: %+v", r)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "money.example.com", "ftp://x", "http://", "https://user:secret@x", "http://x?a=1", "http://x#a", "http://x\x00secret"} {
		_, err := New(Config{URL: url})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("url %q: %v", url, err)
		}
	}
	for name, cfg := range map[string]Config{
		"timeout": {Timeout: 7}, "concurrency": {MaxConcurrency: -1},
		"header": {Credentials: Credentials{Header: "no colon"}}, "header break": {Credentials: Credentials{Header: "A: b\r\nC: d"}},
		"header of a token without one": {Credentials: Credentials{Header: "X-Token"}}, "header without a value": {Credentials: Credentials{Header: "X-Token:"}},
		"header of ours": {Credentials: Credentials{Header: "idempotency-key: 1"}}, "odd name": {Credentials: Credentials{Header: "X Token: secret"}},
		"token file":  {Credentials: Credentials{TokenFile: "/nowhere/token"}},
		"half a pair": {Credentials: Credentials{CertFile: "x"}}, "pair": {Credentials: Credentials{CertFile: "/nowhere/c", KeyFile: "/nowhere/k"}},
		"ca": {Credentials: Credentials{CAFile: "/nowhere/ca"}}, "reason without a code": {Reasons: ": x"}, "code without a reason": {Reasons: "LIMIT"},
		"a code twice": {Reasons: "A: x\nA: y"}, "a long reason": {Reasons: "A: " + strings.Repeat("x", textMax+1)},
	} {
		cfg.URL = "http://127.0.0.1"
		c, err := New(cfg)
		if err == nil {
			c.Close()
			t.Errorf("%s: accepted", name)
		} else if !strings.HasPrefix(err.Error(), "money.") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := newClient(t, Config{URL: "http://127.0.0.1"})
	if c.cfg.Timeout != 5*time.Second || cap(c.slots) != 2048 || c.transport.MaxIdleConnsPerHost != 2048 || c.transport.Proxy != nil {
		t.Errorf("defaults: %+v", c.cfg)
	}
}
