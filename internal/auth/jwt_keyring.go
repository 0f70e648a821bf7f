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
	jwksMax       = 1 << 20         // bytes of a JWKS
	jwksHeaders   = 64 << 10        // bytes of the headers it comes with
	jwksTimeout   = 5 * time.Second // of a fetch, from the dial to the last byte
	jwksRedirects = 3
	// keysPause lies between two fetches, whatever asks for them.
	keysPause = 10 * time.Second
	// keysEvery is how old keys in use become before they are fetched again;
	// meanwhile they are believed.
	keysEvery = 15 * time.Minute
	// keysRest is the time without a fetch (nobody has come) after which the
	// next one is waited for before old keys are believed again.
	keysRest = 2 * keysEvery
	// keysKept is how old keys become that cannot be fetched again.
	keysKept = 24 * time.Hour
)

var errTokensClosed = errors.New("tokens are verified no more: we are stopping")

// keyRing holds the keys of a JWKS as they were when it was last read, and
// reads it again when that is due: when there are none, when they are old, or
// when a key is asked for that is not there. Nothing runs between the reads.
//
// Whatever comes, one fetch runs at a time and keysPause lies between the
// beginnings of two, so that made-up key ids cost their publisher nothing. A
// fetch belongs to the ring, not to who has caused it: he may go.
type keyRing struct {
	read func(ctx context.Context) ([]byte, error)
	log  obs.Log

	life    context.Context // of the fetches
	end     context.CancelFunc
	fetches sync.WaitGroup

	mu       sync.Mutex // protects what follows
	known    bool       // keys have been read, at readAt
	keys     []publicKey
	readAt   time.Time
	triedAt  time.Time     // when the last fetch began; zero: none has
	failure  error         // of the last fetch; nil = none
	skipped  string        // what was last said of keys that cannot be used
	fetching chan struct{} // closed when the fetch ends that runs; nil = none runs
	rested   bool          // the fetch that runs is the first one for keysRest
}

func newKeyRing(jwks string, log obs.Log) (*keyRing, error) {
	read, err := jwksReader(jwks)
	if err != nil {
		return nil, err
	}
	r := &keyRing{read: read, log: log}
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

// find returns the key for a kid and an algorithm; without a kid ("") the only
// one that fits. ErrUnknown: there is none.
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

// look is find without waiting; fetch is not nil when it is worth waiting for.
func (r *keyRing) look(kid, alg string) (key any, fetch <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	age := now.Sub(r.readAt)
	known := r.known && age < keysKept
	key, missing, err := pickKey(r.keys, kid, alg)
	if !known || missing || age >= keysEvery {
		r.fetchLocked(now)
	}
	if r.fetching != nil && (!known || missing || r.rested) {
		fetch = r.fetching
	}
	switch {
	case !known:
		return nil, fetch, fmt.Errorf("the JWKS cannot be had: %w", r.failure)
	case missing && r.failure != nil:
		return nil, fetch, fmt.Errorf("the token's key is not known yet, and the JWKS cannot be had: %w", r.failure)
	}
	return key, fetch, err
}

// pickKey chooses among keys. missing: another set of keys may have the one that
// is looked for.
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
		return nil, false, fmt.Errorf("%w: the token does not say which key it is signed with (kid), and several fit", ErrUnknown)
	case fit > 1:
		return nil, false, fmt.Errorf("%w: the JWKS has several keys of the token's kid", ErrUnknown)
	case named > 0 && kid != "":
		return nil, false, fmt.Errorf("%w: the token's algorithm does not fit its key", ErrUnknown)
	}
	return nil, true, fmt.Errorf("%w: the token is signed with a key that the JWKS does not have for tokens", ErrUnknown)
}

// fetchLocked begins a fetch, unless one runs or began within keysPause.
func (r *keyRing) fetchLocked(now time.Time) {
	if r.fetching != nil || r.life.Err() != nil || !r.triedAt.IsZero() && now.Sub(r.triedAt) < keysPause {
		return
	}
	done := make(chan struct{})
	r.rested = now.Sub(r.triedAt) >= keysRest
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
			err = fmt.Errorf("it did not come within %v", jwksTimeout)
		}
		return nil, nil, err
	}
	return parseJWKS(doc)
}

// setLocked takes over what a fetch has brought that began at the time at.
func (r *keyRing) setLocked(at time.Time, keys []publicKey, skipped []string, err error) {
	if r.life.Err() != nil {
		return // close has ended it
	}
	if err != nil {
		r.failure = err
		r.log.Warn(obs.Unavailable, err, "what", "JWKS")
		return
	}
	switch {
	case r.failure != nil:
		r.log.Info(obs.Recovered, "what", "JWKS", "keys", len(keys))
	case !r.known:
		r.log.Info(obs.Loaded, "what", "JWKS", "keys", len(keys))
	}
	said := strings.Join(skipped, "; ")
	if said != "" && said != r.skipped {
		r.log.Warn(obs.Failed, errors.New(said), "what", "keys of the JWKS that are not used")
	}
	r.known, r.keys, r.readAt, r.failure, r.skipped = true, keys, at, nil, said
}

// jwksReader returns what reads a JWKS by its URL or path.
func jwksReader(jwks string) (func(context.Context) ([]byte, error), error) {
	if jwks == "" {
		return nil, errors.New("the JWKS is not set: it is the URL or the file of the keys that tokens are signed with")
	}
	if !strings.Contains(jwks, "://") {
		return func(context.Context) ([]byte, error) { return readJWKSFile(jwks) }, nil
	}
	u, err := url.Parse(jwks)
	switch {
	case err != nil:
		return nil, errors.New("the JWKS cannot be read as a URL") // without the cause: it repeats the URL, secrets and all
	case u.Scheme != "https" && u.Scheme != "http", u.Host == "":
		return nil, errors.New("the JWKS must be like https://id.example.com/keys, or the path of a file")
	case u.User != nil:
		return nil, errors.New("the URL of the JWKS must not hold a user or password")
	case u.Fragment != "":
		return nil, errors.New("the URL of the JWKS must not have a fragment")
	case u.Scheme == "http" && !IsLoopback(u.Hostname()):
		return nil, errors.New("the JWKS must be https:// unless it is on a loopback address: whoever is on the way could put keys of his own")
	}
	return newJWKSURL(u).read, nil
}

// IsLoopback says whether a host, a name or an address without a port, is this
// machine and no other can be on the way to it.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func readJWKSFile(path string) ([]byte, error) {
	// Anything else than a file could block for ever.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
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

// jwksURL reads a JWKS from the web.
type jwksURL struct {
	url       string
	transport *http.Transport
}

func newJWKSURL(u *url.URL) *jwksURL {
	dialer := &net.Dialer{Timeout: jwksTimeout}
	if u.Scheme == "http" {
		dialer.Control = requireLoopback
	}
	return &jwksURL{url: u.String(), transport: &http.Transport{
		DialContext: dialer.DialContext,
		// Nothing is kept open for the next read in a quarter of an hour.
		DisableKeepAlives:      true,
		DisableCompression:     true, // the bound on a body is a bound on what it unpacks to
		MaxResponseHeaderBytes: jwksHeaders,
	}}
}

// requireLoopback is asked with the address that a name was resolved to, also
// after a redirect.
func requireLoopback(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().Unmap().IsLoopback() {
		return errors.New("http:// leads away from the loopback addresses: use https://")
	}
	return nil
}

func (j *jwksURL) read(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	req.Header.Set("User-Agent", "largesse")
	client := http.Client{Transport: j.transport, CheckRedirect: checkRedirect}
	resp, err := client.Do(req)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the URL, which may hold a secret
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
