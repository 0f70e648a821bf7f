package money

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/netfault"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/tracing"
)

const (
	defaultTimeout        = 5 * time.Second
	defaultMaxConcurrency = 2048
	answerMax             = 64 << 10 // maximum bytes read of a body, and of the headers
	// idleTimeout is below the shortest common keep-alive of servers (5 s): a
	// call on a connection that the server is just closing would get no
	// response.
	idleTimeout = 4 * time.Second
)

var errClosed = errors.New("the Money API client is closed")

// Config configures a Client.
type Config struct {
	URL string // required: http:// or https://, optionally with a path
	// Timeout limits the time from the moment a call is sent to the last byte
	// of its response, and the dial before that. Zero means 5 s.
	Timeout time.Duration
	// MaxConcurrency limits the calls in flight. Zero means 2048.
	MaxConcurrency int
	// RefusalCodes lists the provider's codes that mean a refusal with any 4xx
	// status, including 401 to 415 and 429.
	RefusalCodes []string
	// Reasons is what codes of the provider mean to people; see ParseReasons.
	Reasons     string
	Credentials Credentials
	// Currencies are those that the provider pays; see reward.Payable.
	Currencies []string
	// Custom describes another API than the Money API. The zero value stands for
	// the Money API.
	Custom Custom
	Log    obs.Log
	// Metrics counts and times the calls; nil: not counted.
	Metrics *obs.Metrics
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.MaxConcurrency == 0 {
		c.MaxConcurrency = defaultMaxConcurrency
	}
	return c
}

func (c Config) validate() error {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return errors.New("money.url is not a valid URL") // omit the cause: it contains the URL, which may hold a secret
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return errors.New("money.url must be of the form https://money.example.com")
	case u.User != nil:
		return errors.New("money.url must not hold a user or password: use money.auth-header or money.token-file")
	case u.RawQuery != "" || u.Fragment != "":
		return errors.New("money.url must not have a query or a fragment")
	case c.Timeout < time.Millisecond:
		return fmt.Errorf("money.timeout %v is below 1ms", c.Timeout)
	case c.MaxConcurrency < 1:
		return fmt.Errorf("money.max-concurrency %d is below 1", c.MaxConcurrency)
	}
	return nil
}

// Client calls the provider's Money API. Each call of a method sends a request
// at most once: neither Client nor net/http repeats it. It is safe for
// concurrent use.
type Client struct {
	payer
	url       string // without a trailing slash
	refusals  map[string]bool
	custom    *custom // nil: the Money API
	signer    *signer
	transport *http.Transport
	slots     chan struct{} // holds one item per call in flight
	closed    chan struct{}
}

// New returns a Client. It does not call the provider.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Client{
		payer:    newPayer(cfg),
		url:      strings.TrimRight(cfg.URL, "/"),
		refusals: make(map[string]bool, len(cfg.RefusalCodes)),
		slots:    make(chan struct{}, cfg.MaxConcurrency),
		closed:   make(chan struct{}),
	}
	c.pay, c.find = c.chargeOnce, c.lookupOnce
	var err error
	if c.reasons, err = ParseReasons(cfg.Reasons); err != nil {
		return nil, fmt.Errorf("money.reasons %w", err)
	}
	if c.signer, err = newSigner(cfg.Credentials, c.log); err != nil {
		return nil, err
	}
	if cfg.Custom != (Custom{}) {
		api, problems := newCustom(cfg.Custom, c.log)
		if len(problems) > 0 {
			return nil, problems[0]
		}
		if u, err := url.Parse(c.url); err == nil {
			api.base = u.EscapedPath()
		}
		c.custom = api
		c.payable = api.payable()
		c.payable.Currencies = cfg.Currencies
	}
	for _, code := range cfg.RefusalCodes {
		c.refusals[clean(code, codeMax)] = true
	}
	// Use HTTP/1.1 only, also over TLS. A connection then carries one call at a
	// time, so the first write belongs to that call, and its check can stop it.
	c.transport = &http.Transport{
		DialContext:            c.dial,
		DialTLSContext:         c.dialTLS,
		MaxIdleConns:           cfg.MaxConcurrency,
		MaxIdleConnsPerHost:    cfg.MaxConcurrency,
		IdleConnTimeout:        idleTimeout,
		DisableCompression:     true, // answerMax must limit the uncompressed body
		MaxResponseHeaderBytes: answerMax,
	}
	return c, nil
}

// Close closes idle connections and lets no new call start. Calls in flight
// continue.
func (c *Client) Close() {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	c.transport.CloseIdleConnections()
}

var chargePaths = map[reward.PromotionType]string{reward.Point: "/v1/points/charge", reward.Voucher: "/v1/vouchers/charge"}

func (c *Client) chargeRequest(t reward.PromotionType, ch Charge) (request, error) {
	if c.custom != nil {
		return c.custom.request(ch, t, time.Now())
	}
	body, err := json.Marshal(ch)
	key := reward.IdempotencyKey(ch.PromotionID, ch.TargetID)
	return request{method: http.MethodPost, path: chargePaths[t], key: key, body: body}, err
}

func (c *Client) chargeOnce(ctx context.Context, t reward.PromotionType, ch Charge, check CheckFunc) Answer {
	q, err := c.chargeRequest(t, ch)
	if err != nil {
		return unsendable(err)
	}
	q.check = check
	r, failure := c.do(ctx, q)
	switch {
	case failure != nil:
		return *failure
	case c.custom != nil:
		return c.custom.classify(r, q.customKey, time.Now())
	}
	return classify(r, c.refusals, time.Now())
}

func (c *Client) lookupOnce(ctx context.Context, p reward.PromotionID, t reward.TargetID) LookupResult {
	q := request{method: http.MethodGet, path: "/v1/transactions/" + reward.IdempotencyKey(p, t)}
	if c.custom != nil {
		if c.custom.with.LookupPath == "" {
			return LookupResult{Answer: Answer{Class: reward.AnswerUnknown, Code: CodeNoLookup, Message: errNoLookup.Error(), Err: errNoLookup}}
		}
		var err error
		if q, err = c.custom.lookupRequest(p, t, time.Now()); err != nil {
			return LookupResult{Answer: unsendable(err)}
		}
	}
	r, failure := c.do(ctx, q)
	switch {
	case failure != nil:
		return LookupResult{Answer: *failure}
	case c.custom != nil:
		return c.custom.classifyLookup(r, q.customKey, time.Now())
	}
	return classifyLookup(r, time.Now())
}

// Probe posts a body that no payout has, to learn how the provider handles it. An
// empty key sends none.
func (c *Client) Probe(ctx context.Context, path, key string, body []byte) Answer {
	r, failure := c.do(ctx, request{method: http.MethodPost, path: path, key: key, body: body, page: true})
	if failure != nil {
		return *failure
	}
	return classify(r, nil, time.Now())
}

type request struct {
	method, path string
	key          string      // charges only
	customKey    string      // of a Custom, whose headers may have it
	body         []byte      // charges only
	headers      http.Header // in addition
	check        CheckFunc
	answerMax    int64 // maximum bytes read of the body, if not the usual answerMax
	page         bool  // a page of a list, whose duration does not count as a charge's
}

func (q request) step() string {
	if q.method == http.MethodGet {
		return "look up"
	}
	return "charge"
}

// do makes one call. It returns the response, or an Answer (UNSENT or UNKNOWN)
// if there is no complete one.
func (c *Client) do(ctx context.Context, q request) (reply, *Answer) {
	if failure := c.acquire(ctx); failure != nil {
		return reply{}, failure
	}
	defer func() { <-c.slots }()
	sent, began := false, time.Now()
	c.cfg.Metrics.CallOpened()
	defer func() { c.cfg.Metrics.CallEnded(sent && !q.page, time.Since(began)) }()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call := &call{check: q.check, timeout: c.cfg.Timeout, cancel: cancel}
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(got httptrace.GotConnInfo) { got.Conn.(*gatedConn).call.Store(call) },
		GotFirstResponseByte: call.answering,
	})
	req, err := http.NewRequestWithContext(traced, q.method, c.url+q.path, nil)
	if err != nil {
		failure := unsent("INTERNAL", fmt.Errorf("create the request: %w", err))
		return reply{}, &failure
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "largesse")
	if q.body != nil {
		// Set no GetBody: with it, net/http would repeat a charge on its own
		// because of the Idempotency-Key. net/http still sees that the body is
		// in memory, and sends it in one packet with the headers.
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(q.body)), int64(len(q.body))
		req.Header.Set("Content-Type", "application/json")
		if q.key != "" {
			req.Header.Set("Idempotency-Key", q.key)
		}
	}
	span := tracing.Call(ctx, q.step(), req.Header)
	for name, values := range q.headers {
		req.Header[name] = values
	}
	c.signer.sign(req.Header)

	r, err := c.exchange(req, cmp.Or(q.answerMax, answerMax))
	span.SetInt("http.response.status_code", int64(r.status))
	var refused error
	sent, refused = call.end()
	if err == nil && call.early.Load() {
		err = errEarly
	}
	if err == nil && sent {
		span.End(nil)
		return r, nil
	}
	failure := failed(ctx, sent, refused, err)
	failure.Status = r.status
	span.End(failure.Err)
	return reply{}, &failure
}

// exchange sends a request and reads at most limit bytes of the response. It
// uses the transport directly, because an http.Client follows redirects.
func (c *Client) exchange(req *http.Request, limit int64) (reply, error) {
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	r := reply{status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After")}
	r.body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if int64(len(r.body)) > limit {
		r.body, r.cut = r.body[:limit], true
	}
	return r, err
}

// failed returns the Answer of a call without a complete response: UNKNOWN if
// it was sent, otherwise UNSENT. ctx is the call's own.
func failed(ctx context.Context, sent bool, refused, err error) Answer {
	cause := context.Cause(ctx)
	if !sent {
		switch {
		case refused != nil:
			return unsent(CodeNotAllowed, fmt.Errorf("not sent: %w", refused))
		case cause != nil:
			return unsent(CodeStopped, fmt.Errorf("not sent: %w", cause))
		}
		failure := unsent(CodeNotConnected, fmt.Errorf("not sent: %w", err))
		failure.Message = "not sent: " + withoutAddress(err)
		return failure
	}
	code, words := CodeReset, withoutAddress(err)
	switch {
	case errors.Is(cause, errTimeout):
		code, err, words = CodeTimeout, cause, cause.Error()
	case cause != nil:
		code, err, words = CodeStopped, cause, cause.Error()
	}
	const prefix = "sent, no response: "
	return Answer{Class: reward.AnswerUnknown, Code: code, Message: clean(prefix+words, textMax), Err: fmt.Errorf(prefix+"%w", err)}
}

// withoutAddress returns what anybody may read about an error of the transport, whose
// own text is for the log: it names addresses inside the network of this process.
func withoutAddress(err error) string {
	if errors.Is(err, errEarly) {
		return errEarly.Error()
	}
	return cmp.Or(netfault.Reason(err, "the provider"), "the connection failed")
}

func unsent(code string, err error) Answer {
	return Answer{Class: reward.AnswerNotSent, Code: code, Message: clean(err.Error(), textMax), Err: err}
}

func (c *Client) acquire(ctx context.Context) *Answer {
	var err error
	select {
	case <-c.closed:
		err = errClosed
	default:
		select {
		case c.slots <- struct{}{}:
			return nil
		case <-c.closed:
			err = errClosed
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	failure := unsent(CodeStopped, fmt.Errorf("not sent while waiting for a free slot: %w", err))
	return &failure
}

func (c *Client) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: c.cfg.Timeout}
	return gated(d.DialContext(ctx, network, addr))
}

// dialTLS puts the gatedConn above the TLS handshake, so that the check stops
// the request and not the handshake.
func (c *Client) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return gated(nil, err)
	}
	d := tls.Dialer{Config: c.signer.tls(host)}
	return gated(d.DialContext(ctx, network, addr))
}

func gated(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, fmt.Errorf("connect to the Money API: %w", err)
	}
	return &gatedConn{Conn: conn}, nil
}
