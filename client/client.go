// Package client calls the HTTP API of a Largesse server.
//
// Every method takes a context and stops when it ends. Only watches repeat
// calls. After an error that is not a *Problem, the outcome of a call is
// unknown. You can repeat every call safely: under WithIdempotencyKey a repeated
// call creates nothing twice, uploads are idempotent by target, a repeated coupon
// request keeps its ticket, and a change of status that already happened returns
// a *Problem with the code ILLEGAL_STATE. An iterator ends after its first error.
//
// The server returns the types of this package. The tag doc of a field is its text in
// /openapi.json. A field that is nil or empty is none, unknown, unlimited or not yet,
// unless it says otherwise.
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

// DefaultServer is the default address of a server.
const DefaultServer = "http://127.0.0.1:8080"

// replyMax limits the size of a response that is read into memory, in bytes.
const replyMax = 64 << 20

// Options holds the optional settings of a Client.
type Options struct {
	APIKey string // sent as a bearer token; empty: none
	// Actor is the name to record as the actor, 1 to 200 characters. Empty: the
	// server records the call as anonymous. The server uses it only while its
	// auth.mode is none; otherwise the key or token names the actor.
	Actor string
	// Timeout limits a call from its first byte to its last. Zero means 30
	// seconds. It does not apply to uploads, exports, retries, bulk operations
	// on dead letters, reconciliations and events, which have no limit.
	Timeout   time.Duration
	UserAgent string            // empty: largesse-client with the version of the module
	Transport http.RoundTripper // sends the calls; nil: http.DefaultTransport
}

// Client calls one server. Its methods are safe for concurrent use.
type Client struct {
	base    *url.URL
	options Options
	http    *http.Client
}

// New returns a Client for a server such as http://127.0.0.1:8080. The URL may
// have a path, for an API behind a proxy.
func New(server string, o Options) (*Client, error) {
	base, err := url.Parse(server)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, fmt.Errorf("the server address %q must look like %s", redact(server), DefaultServer)
	}
	if base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("the server address %q must not have a query or fragment", redact(server))
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.UserAgent == "" {
		o.UserAgent = defaultUserAgent()
	}
	return &Client{base: base, options: o, http: &http.Client{Transport: o.Transport, CheckRedirect: refuseRedirect}}, nil
}

// refuseRedirect refuses every redirect. net/http would send the API key along to
// another port of the same host, and from https to http.
func refuseRedirect(to *http.Request, _ []*http.Request) error {
	return fmt.Errorf("the server redirects to %s://%s, which is not followed, because the request has an API key: use the address of the API", to.URL.Scheme, to.URL.Host)
}

// Server returns the URL of the server, with a password masked.
func (c *Client) Server() string { return c.base.Redacted() }

// redact masks what may be a password in an address that may be malformed.
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

// request describes one call.
type request struct {
	method    string
	path      []string // unescaped segments
	query     url.Values
	header    http.Header
	json      any // JSON body; nil: none
	body      io.Reader
	accept    string // media type; empty: JSON
	ifMatch   string // header If-Match; empty: none
	unbounded bool   // ends only with its context; see Options.Timeout
}

// call sends a request and returns the JSON response, with its ETag where T has one.
func call[T any](ctx context.Context, c *Client, r request) (T, error) {
	var out T
	err := c.call(ctx, r, &out)
	return out, err
}

func get[T any](ctx context.Context, c *Client, path ...string) (T, error) {
	return call[T](ctx, c, request{method: http.MethodGet, path: path})
}

// post sends a JSON body, unless it is nil.
func post[T any](ctx context.Context, c *Client, body any, path ...string) (T, error) {
	return call[T](ctx, c, request{method: http.MethodPost, path: path, json: body})
}

// call sends a request and decodes the JSON response into out, unless out is
// nil.
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
	if tagged, ok := out.(interface{ setETag(tag string) }); ok {
		tagged.setETag(res.Header.Get("ETag"))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("parsing the response to %s failed; check that %s is a Largesse server: %w", r.what(), c.Server(), err)
	}
	return nil
}

// send sends a request and returns the response, whatever its status.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	target := c.base.JoinPath(escape(r.path)...)
	target.RawQuery = r.query.Encode()
	if r.json != nil {
		text, err := json.Marshal(r.json)
		if err != nil {
			return nil, fmt.Errorf("encoding the request: %w", err)
		}
		r.body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target.String(), r.body)
	if err != nil {
		return nil, fmt.Errorf("preparing %s: %w", r.what(), err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if r.json != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.ifMatch != "" {
		req.Header.Set("If-Match", r.ifMatch)
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

// read reads a whole response. It returns a *Problem if the status is not a
// success.
func (r request) read(res *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(res.Body, replyMax+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the response to %s: %w", r.what(), err)
	case len(body) > replyMax:
		return nil, fmt.Errorf("the response to %s exceeds %d bytes", r.what(), replyMax)
	case !success(res):
		return nil, readProblem(res, body)
	}
	return body, nil
}

func success(res *http.Response) bool { return res.StatusCode >= 200 && res.StatusCode <= 299 }

func (r request) what() string { return r.method + " /" + strings.Join(r.path, "/") }

// escape escapes each segment, so that an ID cannot change the path.
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

// plainURLError removes the method and URL that net/http repeats in its errors, and says what
// an end of the connection means.
func plainURLError(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the connection was closed without a response: %w", err)
	}
	return err
}

type idempotencyKey struct{}

// WithIdempotencyKey returns a context whose creating calls are safe to repeat:
// for 24 hours, the same call with the same key gets the same response and
// creates nothing new. Use a new key, 1 to 255 ASCII characters such as a UUID,
// for each object to create.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, key)
}

// Clearable is a field of a change that either sets or clears a value.
type Clearable[T any] struct{ value *T }

// Set returns a Clearable that sets a value.
func Set[T any](value T) *Clearable[T] { return &Clearable[T]{&value} }

// Clear returns a Clearable that removes the value.
func Clear[T any]() *Clearable[T] { return &Clearable[T]{} }

// MarshalJSON returns the value, or null if it is cleared.
func (c *Clearable[T]) MarshalJSON() ([]byte, error) { return json.Marshal(c.value) }
