package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

const (
	jwksMax       = 1 << 20         // maximum bytes of a JWKS
	jwksHeaders   = 64 << 10        // maximum bytes of its response headers
	jwksTimeout   = 5 * time.Second // limits a fetch, from the dial to the last byte
	jwksRedirects = 3
	// fetchIntervalMin is the shortest time between the starts of two fetches.
	fetchIntervalMin = 10 * time.Second
	// keysInterval is the age at which keys are fetched again.
	keysInterval = 15 * time.Minute
	// keysIdleAfter is the time without a fetch after which a token waits for new keys.
	keysIdleAfter = 2 * keysInterval
	// keysTTL is the age at which keys expire if fetching new ones fails.
	keysTTL = 24 * time.Hour
)

var errTokensClosed = errors.New("the token verifier is closed")

// keyRing caches the keys of a JWKS. It fetches them again if they are old, or if a
// token names an unknown key.
//
// One fetch runs at a time, and they start at least fetchIntervalMin apart, so that
// invented key IDs do not load the issuer's server. A fetch continues if the caller
// that started it gives up.
type keyRing struct {
	read func(ctx context.Context) ([]byte, error)
	log  obs.Log
	// report logs failed fetches in a row.
	report func(err error, attrs ...any)

	life    context.Context // lifetime of the fetches
	end     context.CancelFunc
	fetches sync.WaitGroup

	mu       sync.Mutex // protects the fields below
	keys     []publicKey
	readAt   time.Time     // of the keys; zero: none
	triedAt  time.Time     // start of the last fetch; zero: none
	failure  error         // error of the last fetch; nil: none
	skipped  string        // last reported reasons for unusable keys
	fetching chan struct{} // closed when the running fetch ends; nil: none runs
	rested   bool          // the running fetch is the first one after keysIdleAfter
}

func newKeyRing(jwks string, log obs.Log) (*keyRing, error) {
	read, err := jwksReader(jwks)
	if err != nil {
		return nil, err
	}
	r := &keyRing{read: read, log: log, report: log.Streak("JWKS unavailable", "JWKS available again")}
	r.life, r.end = context.WithCancel(context.Background())
	return r, nil
}

func (r *keyRing) close() {
	r.mu.Lock()
	r.end()
	r.failure = errTokensClosed
	r.mu.Unlock()
	r.fetches.Wait()
}

// find returns the only key that fits a kid ("" if none is given) and an algorithm, or
// ErrUnauthenticated.
func (r *keyRing) find(ctx context.Context, kid, alg string) (any, error) {
	key, fetch, err := r.look(kid, alg)
	if fetch == nil {
		return key, err
	}
	select {
	case <-fetch:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the JWKS: %w", context.Cause(ctx))
	}
	key, _, err = r.look(kid, alg)
	return key, err
}

// look is find without waiting for fetch, if that is not nil.
func (r *keyRing) look(kid, alg string) (key any, fetch <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	age := now.Sub(r.readAt)
	known := age < keysTTL
	key, missing, err := pickKey(r.keys, kid, alg)
	if !known || missing || age >= keysInterval {
		r.fetchLocked(now)
	}
	if r.fetching != nil && (!known || missing || r.rested) {
		fetch = r.fetching
	}
	switch {
	case !known:
		return nil, fetch, fmt.Errorf("the JWKS is unavailable: %w", r.failure)
	case missing && r.failure != nil:
		return nil, fetch, fmt.Errorf("the token's key is unknown, and the JWKS is unavailable: %w", r.failure)
	}
	return key, fetch, err
}

// pickKey selects a key. missing means that a newer JWKS may have it.
func pickKey(keys []publicKey, kid, alg string) (key any, missing bool, err error) {
	named, fit := 0, 0
	for _, k := range keys {
		if kid != "" && k.kid != kid {
			continue
		}
		named++
		if slices.Contains(k.algorithms, alg) {
			fit++
			key = k.key
		}
	}
	switch {
	case fit == 1:
		return key, false, nil
	case fit > 1 && kid == "":
		return nil, false, fmt.Errorf("%w: the token does not say which key it is signed with (kid), and several fit", ErrUnauthenticated)
	case fit > 1:
		return nil, false, fmt.Errorf("%w: the JWKS has several keys with the token's kid", ErrUnauthenticated)
	case named > 0 && kid != "":
		return nil, false, fmt.Errorf("%w: the token's algorithm does not fit its key", ErrUnauthenticated)
	}
	return nil, true, fmt.Errorf("%w: the JWKS has no key that fits the token's kid and algorithm", ErrUnauthenticated)
}

// fetchLocked starts a fetch, at most one per fetchIntervalMin.
func (r *keyRing) fetchLocked(now time.Time) {
	if r.fetching != nil || r.life.Err() != nil || now.Sub(r.triedAt) < fetchIntervalMin {
		return
	}
	done := make(chan struct{})
	r.rested = now.Sub(r.triedAt) >= keysIdleAfter
	r.fetching, r.triedAt = done, now
	r.fetches.Go(func() {
		keys, skipped, err := r.fetch()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.fetching = nil
		close(done)
		r.setLocked(now, keys, skipped, err)
	})
}

func (r *keyRing) fetch() (keys []publicKey, skipped []string, err error) {
	ctx, cancel := context.WithTimeout(r.life, jwksTimeout)
	defer cancel()
	doc, err := r.read(ctx)
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("it did not arrive within %v", jwksTimeout)
		}
		return nil, nil, err
	}
	return parseJWKS(doc)
}

// setLocked applies the result of a fetch that started at the given time.
func (r *keyRing) setLocked(at time.Time, keys []publicKey, skipped []string, err error) {
	if r.life.Err() != nil {
		return // close has cancelled the fetch
	}
	if err != nil {
		r.failure = err
		r.report(err)
		return
	}
	switch {
	case r.failure != nil:
		r.report(nil, "keys", len(keys))
	case r.readAt.IsZero():
		r.log.Info("JWKS loaded", "keys", len(keys))
	}
	said := strings.Join(skipped, "; ")
	if said != "" && said != r.skipped {
		r.log.Warn("JWKS keys skipped", errors.New(said))
	}
	r.keys, r.readAt, r.failure, r.skipped = keys, at, nil, said
}

func jwksReader(jwks string) (func(context.Context) ([]byte, error), error) {
	if jwks == "" {
		return nil, errors.New("the JWKS is not set: set the URL or the file of the token issuer's keys")
	}
	if !strings.Contains(jwks, "://") {
		return func(context.Context) ([]byte, error) { return readJWKSFile(jwks) }, nil
	}
	u, err := url.Parse(jwks)
	switch {
	case err != nil:
		return nil, errors.New("the JWKS is not a valid URL") // omit the cause: it contains the URL, which may hold a secret
	case u.Scheme != "https" && u.Scheme != "http", u.Host == "":
		return nil, errors.New("the JWKS must be of the form https://id.example.com/keys, or the path of a file")
	case u.User != nil:
		return nil, errors.New("the URL of the JWKS must not hold a user or password")
	case u.Fragment != "":
		return nil, errors.New("the URL of the JWKS must not have a fragment")
	case u.Scheme == "http" && !IsLoopback(u.Hostname()):
		return nil, errors.New("the JWKS must be https:// unless it is on a loopback address: on the way, an attacker could replace the keys")
	}
	transport := newJWKSTransport(u.Scheme)
	return func(ctx context.Context) ([]byte, error) { return fetchJWKS(ctx, transport, u.String()) }, nil
}

// IsLoopback reports whether no other machine is on the way to a host without a port.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func readJWKSFile(path string) ([]byte, error) {
	// Reading anything but a file could block forever.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readJWKS(f)
}

func readJWKS(from io.Reader) ([]byte, error) {
	doc, err := io.ReadAll(io.LimitReader(from, jwksMax+1))
	if err != nil {
		return nil, err
	}
	if len(doc) > jwksMax {
		return nil, fmt.Errorf("it is longer than %d bytes", jwksMax)
	}
	return doc, nil
}

func newJWKSTransport(scheme string) *http.Transport {
	dialer := &net.Dialer{Timeout: jwksTimeout}
	if scheme == "http" {
		dialer.Control = requireLoopback
	}
	return &http.Transport{
		DialContext: dialer.DialContext,
		// Keep no connection open: the next fetch is 15 minutes away.
		DisableKeepAlives:      true,
		DisableCompression:     true, // jwksMax must limit the uncompressed body
		MaxResponseHeaderBytes: jwksHeaders,
	}
}

// requireLoopback checks each address that is dialled, also after a redirect.
func requireLoopback(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().Unmap().IsLoopback() {
		return errors.New("http:// is allowed for loopback addresses only: use https://")
	}
	return nil
}

func fetchJWKS(ctx context.Context, transport *http.Transport, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	req.Header.Set("User-Agent", "largesse")
	client := http.Client{Transport: transport, CheckRedirect: checkRedirect}
	resp, err := client.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // omit the URL, which may hold a secret
		}
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("its server answered with status %d", resp.StatusCode)
	}
	return readJWKS(resp.Body)
}

func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case req.URL.Scheme != via[0].URL.Scheme:
		return errors.New("its server redirects to another scheme")
	case len(via) > jwksRedirects:
		return fmt.Errorf("its server redirects more than %d times", jwksRedirects)
	}
	return nil
}
