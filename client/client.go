// Package client talks to the HTTP API of a Largesse server.
//
// Every method takes a context and gives up with it. Calls are never repeated
// by the client: after an error that is no *Problem the outcome is unknown.
// All of them may be repeated by the caller: what creates something under
// WithIdempotencyKey makes it once, uploads are idempotent by target, a
// request for a coupon keeps its ticket, and a move that has happened already is
// a *Problem with the code ILLEGAL_STATE.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"
)

// DefaultServer is where a server listens when nothing else is set.
const DefaultServer = "http://127.0.0.1:8080"

// replyMax bounds an answer of the API that is read whole, in bytes.
const replyMax = 64 << 20

// Options are the optional parts of a Client.
type Options struct {
	APIKey string // sent as a bearer token; empty: none
	// Actor says who acts, 1 to 200 characters; empty: the server takes it for
	// anonymous. It counts while the server's auth.mode is none; otherwise the key
	// says who acts.
	Actor string
	// Timeout bounds one call from its first byte to its last, but for those of
	// any length: uploads, exports, retries, dead letters in bulk,
	// reconciliations and events; 0: 30 seconds.
	Timeout   time.Duration
	UserAgent string // empty: largesse-client and the module's version
	// Transport carries the calls; nil: http.DefaultTransport.
	Transport http.RoundTripper
}

// Client calls one server. It is safe for concurrent use.
type Client struct {
	base    *url.URL
	options Options
	http    *http.Client
}

// New makes a Client for a server such as http://127.0.0.1:8080. A path is
// kept, so that the API can live behind a proxy.
func New(server string, o Options) (*Client, error) {
	base, err := url.Parse(server)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, fmt.Errorf("the server's address %q must look like %s", redact(server), DefaultServer)
	}
	if base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("the server's address %q must end with its path", redact(server))
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.UserAgent == "" {
		o.UserAgent = defaultUserAgent()
	}
	return &Client{base: base, options: o, http: &http.Client{Transport: o.Transport}}, nil
}

// Server is the address that the Client calls, without a password.
func (c *Client) Server() string { return c.base.Redacted() }

// redact hides what could be a password in an address that may be broken.
func redact(server string) string {
	if i := strings.LastIndexByte(server, '@'); i >= 0 {
		return "xxxxx" + server[i:]
	}
	return server
}

func defaultUserAgent() string {
	version := "devel"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
			if m.Path == "github.com/largesse/largesse" && m.Version != "" {
				version = m.Version
			}
		}
	}
	return "largesse-client/" + strings.Trim(version, "()")
}

// request is one call.
type request struct {
	method string
	path   []string // segments, unescaped
	query  url.Values
	header http.Header
	body   io.Reader
	accept string // media type; empty: JSON
	// unbounded calls live as long as their context; see Options.Timeout.
	unbounded bool
}

// call sends a request and reads a JSON answer into out, unless that is nil.
func (c *Client) call(ctx context.Context, r request, out any) error {
	if !r.unbounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.options.Timeout)
		defer cancel()
	}
	res, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := r.read(res)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("understanding the answer to %s: is %s a Largesse server? %w", r.what(), c.Server(), err)
	}
	return nil
}

// send sends a request; what came back is no success when read says so.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	target := c.base.JoinPath(escape(r.path)...)
	target.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, target.String(), r.body)
	if err != nil {
		return nil, fmt.Errorf("preparing %s: %w", r.what(), err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if r.accept == "" {
		r.accept = "application/json"
	}
	req.Header.Set("Accept", r.accept)
	req.Header.Set("User-Agent", c.options.UserAgent)
	if c.options.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.options.APIKey)
	}
	if key, ok := ctx.Value(idempotencyKey{}).(string); ok && r.method == http.MethodPost {
		req.Header.Set("Idempotency-Key", key)
	}
	if c.options.Actor != "" {
		req.Header.Set("Largesse-Actor", c.options.Actor)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("calling %s: %w", r.what(), plainURLError(err))
	}
	return res, nil
}

// read reads an answer whole; one that is no success is a *Problem.
func (r request) read(res *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(res.Body, replyMax+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the answer to %s: %w", r.what(), err)
	case len(body) > replyMax:
		return nil, fmt.Errorf("the answer to %s is above %d bytes", r.what(), replyMax)
	case !success(res):
		return nil, readProblem(res, body)
	}
	return body, nil
}

func success(res *http.Response) bool { return res.StatusCode >= 200 && res.StatusCode <= 299 }

func (r request) what() string { return r.method + " /" + strings.Join(r.path, "/") }

// escape makes each segment safe, so that an id can never leave its place.
func escape(path []string) []string {
	escaped := make([]string, len(path))
	for i, segment := range path {
		escaped[i] = url.PathEscape(segment)
		if segment == "." || segment == ".." {
			escaped[i] = strings.ReplaceAll(segment, ".", "%2E")
		}
	}
	return escaped
}

// plainURLError drops the repeated method and URL of net/http's errors.
func plainURLError(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// jsonBody is a request's body and header.
func jsonBody(v any) (io.Reader, http.Header, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, nil, fmt.Errorf("writing the request: %w", err)
	}
	return bytes.NewReader(text), http.Header{"Content-Type": {"application/json"}}, nil
}
