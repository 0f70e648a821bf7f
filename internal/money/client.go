package money

import (
	"bytes"
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

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

const (
	defaultTimeout        = 5 * time.Second
	defaultMaxConcurrency = 2048
	answerMax             = 64 << 10 // bytes of a body, and of the headers, that are read
	// idleFor is below the shortest keep-alive that is common among servers
	// (5 s): a connection the server has just closed would cost a call its
	// answer.
	idleFor = 4 * time.Second
)

var errClosed = errors.New("the Money API client is closed")

// Config says where the provider is and how it is called.
type Config struct {
	URL string // http:// or https://, may have a path; must be set
	// Timeout bounds a call from the moment it leaves to the last byte of its
	// answer, and before that the dial; 0 = 5 s. [money.timeout]
	Timeout time.Duration
	// MaxConcurrency is how many calls may be open at a time; 0 = 2048.
	// [money.max-concurrency]
	MaxConcurrency int
	// RefusalCodes are codes of the provider that mean a refusal on every 4xx,
	// 401 to 415 and 429 among them. [money.refusal-codes]
	RefusalCodes []string
	Credentials  Credentials
	Log          obs.Log
	// Metrics counts the calls and times them; nil = nobody does.
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
		return errors.New("money.url cannot be read as a URL") // without the cause: it repeats the URL, secrets and all
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return errors.New("money.url must be like https://money.example.com")
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

// Client calls the provider's Money API. A charge leaves at most once per call
// of a method: nothing is repeated, here or in net/http.
// [CampaignMoneyApiCallService]
type Client struct {
	cfg       Config
	url       string // without a slash at the end
	refusals  map[string]bool
	signer    *signer
	transport *http.Transport
	slots     chan struct{} // holds one item per open call
	closed    chan struct{}
	log       obs.Log
}

// New makes a Client. It does not call the provider.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	log := cfg.Log.For(obs.Money)
	signer, err := newSigner(cfg.Credentials, log)
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg:      cfg,
		url:      strings.TrimRight(cfg.URL, "/"),
		refusals: make(map[string]bool, len(cfg.RefusalCodes)),
		signer:   signer,
		slots:    make(chan struct{}, cfg.MaxConcurrency),
		closed:   make(chan struct{}),
		log:      log,
	}
	for _, code := range cfg.RefusalCodes {
		c.refusals[clean(code, codeMax)] = true
	}
	// HTTP/1.1 only, also over TLS: a connection then carries one call, so that
	// the first write on it is that call's and can be held back by its check.
	c.transport = &http.Transport{
		DialContext:            c.dial,
		DialTLSContext:         c.dialTLS,
		MaxIdleConns:           cfg.MaxConcurrency,
		MaxIdleConnsPerHost:    cfg.MaxConcurrency,
		IdleConnTimeout:        idleFor,
		DisableCompression:     true, // the bound on a body is a bound on what it unpacks to
		MaxResponseHeaderBytes: answerMax,
	}
	return c, nil
}

// Close ends the idle connections and lets no new call begin. Open calls go on
// to their end.
func (c *Client) Close() {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	c.transport.CloseIdleConnections()
}

// InFlight is the number of calls that are open now.
func (c *Client) InFlight() int { return len(c.slots) }

// chargeBody is a charge on the wire.
type chargeBody struct {
	PromotionID string        `json:"promotionId"`
	TargetID    string        `json:"targetId"`
	UserID      string        `json:"userId"`
	Amount      reward.Amount `json:"amount"`
	VoucherCode string        `json:"voucherCode,omitempty"`
}

// ChargePoint asks the provider to pay points. check is asked at the socket;
// see CheckFunc. [CampaignMoneyApiCallService.chargePoint]
func (c *Client) ChargePoint(ctx context.Context, ch Charge, check CheckFunc) Answer {
	ch.VoucherCode = ""
	return c.charge(ctx, "/v1/points/charge", ch, check)
}

// ChargeVoucher asks the provider to give a voucher. check is asked at the
// socket; see CheckFunc. [CampaignMoneyApiCallService.chargeVoucher]
func (c *Client) ChargeVoucher(ctx context.Context, ch Charge, check CheckFunc) Answer {
	return c.charge(ctx, "/v1/vouchers/charge", ch, check)
}

func (c *Client) charge(ctx context.Context, path string, ch Charge, check CheckFunc) Answer {
	body, err := json.Marshal(chargeBody{
		PromotionID: ch.PromotionID.String(),
		TargetID:    ch.TargetID.String(),
		UserID:      ch.UserID,
		Amount:      ch.Amount,
		VoucherCode: ch.VoucherCode,
	})
	if err != nil {
		return unsent("INTERNAL", fmt.Errorf("write the charge as JSON: %w", err))
	}
	if check == nil {
		check = func() error { return nil } // a call without a check still leaves only once
	}
	key := reward.IdempotencyKey(ch.PromotionID, ch.TargetID)
	r, failure := c.do(ctx, request{method: http.MethodPost, path: path, key: key, body: body, check: check, answerMax: answerMax})
	var a Answer
	if failure != nil {
		a = *failure
	} else {
		a = classify(r, c.refusals, time.Now())
	}
	c.cfg.Metrics.Charged(a.Class)
	if a.Class != reward.AnswerPaid {
		c.log.Debug(obs.Failed, "promotion_id", ch.PromotionID, "target_id", ch.TargetID,
			"class", a.Class, "status", a.Status, "code", a.Code, "error", a.Err)
	}
	return a
}

// Lookup asks the provider whether it has charged a payout's key.
func (c *Client) Lookup(ctx context.Context, p reward.PromotionID, t reward.TargetID) LookupResult {
	key := reward.IdempotencyKey(p, t)
	r, failure := c.do(ctx, request{method: http.MethodGet, path: "/v1/transactions/" + key, answerMax: answerMax})
	res := LookupResult{}
	if failure != nil {
		res.Answer = *failure
	} else {
		res = classifyLookup(r, time.Now())
	}
	c.cfg.Metrics.LookedUp(res.class())
	return res
}

// request is one call to be made.
type request struct {
	method, path string
	key          string // charges only
	body         []byte // charges only
	check        CheckFunc
	answerMax    int64 // bytes of the answer's body that are read
	page         bool  // of a list, whose length says nothing of how long a charge takes
}

// do makes one call. It returns what came back, or an Answer (UNSENT or
// UNKNOWN) when nothing whole did.
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
		failure := unsent("INTERNAL", fmt.Errorf("make the request: %w", err))
		return reply{}, &failure
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "largesse")
	if q.body != nil {
		// Without GetBody net/http cannot send a charge again by itself, which
		// it would do for its Idempotency-Key. The body stays one that net/http
		// knows to be in memory, so that it goes out in the same packet as the
		// headers.
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(q.body)), int64(len(q.body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", q.key)
	}
	c.signer.sign(req.Header)

	r, err := c.exchange(req, q.answerMax)
	var refused error
	sent, refused = call.end()
	if err == nil && call.early.Load() {
		err = errEarly
	}
	if err == nil && sent {
		return r, nil
	}
	failure := failed(ctx, sent, refused, err)
	failure.Status = r.status
	return reply{}, &failure
}

// exchange sends a request and reads its whole answer, or as much as most. The transport is used
// directly: an http.Client would follow redirects.
func (c *Client) exchange(req *http.Request, most int64) (reply, error) {
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	r := reply{status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After")}
	r.body, err = io.ReadAll(io.LimitReader(resp.Body, most))
	return r, err
}

// failed says what a call without a whole answer means: UNKNOWN once it has
// left, UNSENT before. ctx is the call's own.
func failed(ctx context.Context, sent bool, refused, err error) Answer {
	cause := context.Cause(ctx)
	if !sent {
		switch {
		case refused != nil:
			return unsent(CodeNotAllowed, fmt.Errorf("not sent: %w", refused))
		case cause != nil:
			return unsent(CodeStopped, fmt.Errorf("not sent: %w", cause))
		}
		return unsent(CodeNotConnected, fmt.Errorf("not sent: %w", err))
	}
	code := CodeReset
	switch {
	case errors.Is(cause, errTimeout):
		code, err = CodeTimeout, cause
	case cause != nil:
		code, err = CodeStopped, cause
	}
	err = fmt.Errorf("sent, no answer: %w", err)
	return Answer{Class: reward.AnswerUnknown, Code: code, Message: clean(err.Error(), textMax), Err: err}
}

func unsent(code string, err error) Answer {
	return Answer{Class: reward.AnswerUnsent, Code: code, Message: clean(err.Error(), textMax), Err: err}
}

// acquire waits for a free slot.
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
	failure := unsent(CodeStopped, fmt.Errorf("not sent, waited for a free call: %w", err))
	return &failure
}

func (c *Client) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: c.cfg.Timeout}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to the Money API: %w", err)
	}
	return &gatedConn{Conn: conn}, nil
}

// dialTLS is our own so that the gate lies above the handshake: what it holds
// back is the request, not the greeting.
func (c *Client) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("connect to the Money API: %w", err)
	}
	d := tls.Dialer{Config: c.signer.tls(host)}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to the Money API: %w", err)
	}
	return &gatedConn{Conn: conn}, nil
}
