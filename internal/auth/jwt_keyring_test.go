package auth

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

// publisher simulates the publisher of a JWKS.
type publisher struct {
	mu      sync.Mutex // protects what follows
	doc     []byte
	err     error
	takes   time.Duration
	began   []time.Time // the reads
	running int
	most    int // reads at the same time
}

func publish(t testing.TB, keys ...testKey) *publisher {
	t.Helper()
	return &publisher{doc: jwksOf(t, keys...)}
}

func (p *publisher) read(ctx context.Context) ([]byte, error) {
	p.mu.Lock()
	p.began = append(p.began, time.Now())
	p.running++
	p.most = max(p.most, p.running)
	doc, err, takes := p.doc, p.err, p.takes
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.running--
		p.mu.Unlock()
	}()
	select {
	case <-time.After(takes):
		return doc, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *publisher) now(t testing.TB, keys ...testKey) {
	t.Helper()
	p.mu.Lock()
	p.doc, p.err = jwksOf(t, keys...), nil
	p.mu.Unlock()
}

func (p *publisher) set(err error, takes time.Duration) {
	p.mu.Lock()
	p.err, p.takes = err, takes
	p.mu.Unlock()
}

func (p *publisher) reads() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.began)
}

// atOnce is how many reads run, and ran at most, at the same time.
func (p *publisher) atOnce() (now, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running, p.most
}

func (p *publisher) wantReads(t testing.TB, n int, when string) {
	t.Helper()
	if got := p.reads(); got != n {
		t.Errorf("%s: %d reads, want %d", when, got, n)
	}
}

var errDown = errors.New("connection refused")

// lasting signs a token that outlives any test.
func (k testKey) lasting(t testing.TB) string {
	t.Helper()
	return k.sign(t, object{"alg": "EdDSA", "kid": k.jwk["kid"]}, goodClaims().and(object{"exp": fakeStart + 10*365*86400}).json(t))
}

func wantGood(t *testing.T, tokens *TokenVerifier, token, when string) {
	t.Helper()
	if got, err := tokens.Verify(t.Context(), token); err != nil || timeless(got) != testShopper {
		t.Errorf("%s: %+v, %v", when, got, err)
	}
}

func wantRefused(t *testing.T, tokens *TokenVerifier, token string, unknown bool, says, when string) {
	t.Helper()
	got, err := tokens.Verify(t.Context(), token)
	if err == nil || isUnknown(err) != unknown || !strings.Contains(err.Error(), says) || got != (Principal{}) {
		t.Errorf("%s: %+v, %v; want ErrUnknown %v and %q", when, got, err, unknown, says)
	}
}

const missingKey = "the JWKS has no key that fits"

// bubble runs a test on fake time.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

func TestKeysAreFetchedAtFirstUse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		key := newEdKey("a")
		p := publish(t, key)
		p.set(nil, time.Second)
		tokens := newTestTokens(t, p.read)
		time.Sleep(time.Hour)
		p.wantReads(t, 0, "before any token")
		token := key.lasting(t)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { wantGood(t, tokens, token, "first use") })
		}
		all.Wait()
		p.wantReads(t, 1, "a hundred at once")
	})
}

func TestKeysRotate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second := newEdKey("a"), newEdKey("b")
		p := publish(t, first)
		tokens := newTestTokens(t, p.read)
		wantGood(t, tokens, first.lasting(t), "the first key")

		p.now(t, first, second)
		time.Sleep(fetchIntervalMin - 1)
		wantRefused(t, tokens, second.lasting(t), true, missingKey, "too early for another fetch")
		p.wantReads(t, 1, "too early for another fetch")
		time.Sleep(time.Nanosecond)
		wantGood(t, tokens, second.lasting(t), "the second key")
		wantGood(t, tokens, first.lasting(t), "both keys")
		p.wantReads(t, 2, "after the second key has come")

		p.now(t, second)
		wantGood(t, tokens, first.lasting(t), "before a fetch that misses it")
		time.Sleep(keysInterval)
		wantGood(t, tokens, second.lasting(t), "a quarter of an hour later")
		synctest.Wait()
		p.wantReads(t, 3, "a quarter of an hour later")
		wantRefused(t, tokens, first.lasting(t), true, missingKey, "after the fetch that it was not in")
	})
}

// A key that comes again under its old kid is not mixed up with the old one.
func TestKeysChangeUnderTheirKid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second := newEdKey("a"), newEdKey("a")
		p := publish(t, first)
		tokens := newTestTokens(t, p.read)
		wantGood(t, tokens, first.lasting(t), "before")
		p.now(t, second)
		wantRefused(t, tokens, second.lasting(t), true, "signature is wrong", "before a fetch")
		time.Sleep(keysIdleAfter)
		wantGood(t, tokens, second.lasting(t), "after a fetch")
		wantRefused(t, tokens, first.lasting(t), true, "signature is wrong", "after a fetch")
	})
}

func TestFloodOfUnknownKeys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		known, other := newEdKey("a"), newEdKey("b")
		p := publish(t, known)
		p.set(nil, 3*time.Second)
		tokens := newTestTokens(t, p.read)
		good := known.lasting(t)
		wantGood(t, tokens, good, "first use")

		ctx, stop := context.WithTimeout(t.Context(), 35*time.Second)
		defer stop()
		var all sync.WaitGroup
		refused := atomic.Int64{}
		for i := range 50 {
			all.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					token := other.sign(t, object{"alg": "EdDSA", "kid": fmt.Sprint("made-up-", i, "-", n)}, goodClaims().json(t))
					if _, err := tokens.Verify(t.Context(), token); !isUnknown(err) {
						t.Errorf("an unknown key: %v", err)
					}
					refused.Add(1)
					time.Sleep(200 * time.Millisecond)
				}
			})
		}
		for ctx.Err() == nil {
			before := time.Now()
			wantGood(t, tokens, good, "during the flood")
			if took := time.Since(before); took > 0 {
				t.Errorf("a token with a known key waited %v", took)
			}
			time.Sleep(100 * time.Millisecond)
		}
		all.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := 1; i < len(p.began); i++ {
			if gap := p.began[i].Sub(p.began[i-1]); gap < fetchIntervalMin {
				t.Errorf("reads %d and %d lie %v apart", i-1, i, gap)
			}
		}
		if len(p.began) != 4 || p.most != 1 { // at 0 s, 10 s, 20 s, 30 s; the flood is from 3 s to 38 s
			t.Errorf("%d reads, %d at a time", len(p.began), p.most)
		}
		if refused.Load() < 3000 {
			t.Errorf("only %d tokens: that is no flood", refused.Load())
		}
	})
}

func TestKeysInUseAreRefreshed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		key := newEdKey("a")
		p := publish(t, key)
		tokens := newTestTokens(t, p.read)
		token := key.lasting(t)
		wantGood(t, tokens, token, "first use")
		p.set(nil, 4*time.Second)
		longest := time.Duration(0)
		for began := time.Now(); time.Since(began) < time.Hour+time.Minute; time.Sleep(2 * time.Second) {
			before := time.Now()
			wantGood(t, tokens, token, "in use")
			longest = max(longest, time.Since(before))
		}
		p.wantReads(t, 5, "an hour in use")
		if longest > 0 {
			t.Errorf("a token waited %v for keys that are known", longest)
		}
	})
}

// After a pause, old keys are not trusted before they were reread: one of
// them may have left long ago.
func TestKeysAreFetchedAfterARest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second := newEdKey("a"), newEdKey("b")
		p := publish(t, first)
		tokens := newTestTokens(t, p.read)
		wantGood(t, tokens, first.lasting(t), "first use")
		p.now(t, second)
		p.set(nil, time.Second)
		time.Sleep(keysIdleAfter)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { wantRefused(t, tokens, first.lasting(t), true, missingKey, "after a rest") })
		}
		all.Wait()
		p.wantReads(t, 2, "after a rest")

		// If the fetch fails, the known keys stay in use.
		p.set(errDown, time.Second)
		time.Sleep(keysIdleAfter)
		wantGood(t, tokens, second.lasting(t), "the publisher is down")
		p.wantReads(t, 3, "the publisher is down")

		// Nor after a rest that began with a failure.
		p.now(t, newEdKey("c"))
		time.Sleep(keysIdleAfter)
		wantRefused(t, tokens, second.lasting(t), true, missingKey, "after the second rest")
	})
}

func TestKeysThatCannotBeHad(t *testing.T) {
	bubble(t, func(t *testing.T) {
		key := newEdKey("a")
		p := publish(t, key)
		p.set(errDown, 0)
		tokens := newTestTokens(t, p.read)
		token := key.lasting(t)
		for range 10 {
			wantRefused(t, tokens, token, false, "the JWKS is unavailable: connection refused", "down from the beginning")
			time.Sleep(time.Second - 1)
		}
		p.wantReads(t, 1, "10 s down")
		// A token that is refused whatever the keys are needs none.
		wantRefused(t, tokens, "marker", true, "not a JWT", "down from the beginning")
		p.set(nil, 0)
		time.Sleep(time.Second)
		wantGood(t, tokens, token, "up again")
		p.wantReads(t, 2, "up again")
	})
}

func TestOldKeysStayADay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		key := newEdKey("a")
		p := publish(t, key)
		tokens := newTestTokens(t, p.read)
		began := time.Now()
		token := key.lasting(t)
		wantGood(t, tokens, token, "first use")
		p.set(errDown, 4*time.Second)
		for time.Since(began) < keysTTL-time.Minute {
			before := time.Now()
			wantGood(t, tokens, token, "in use")
			if waited := time.Since(before); waited > 0 {
				t.Fatalf("waited %v after %v", waited, time.Since(began))
			}
			time.Sleep(time.Minute)
		}
		time.Sleep(keysTTL - 1 - time.Since(began))
		wantGood(t, tokens, token, "the last moment")
		time.Sleep(fetchIntervalMin)
		wantRefused(t, tokens, token, false, "is unavailable", "after a day")
		p.set(nil, 0)
		time.Sleep(fetchIntervalMin)
		wantGood(t, tokens, token, "up again")
	})
}

// While the JWKS is unavailable, a new key may or may not be in it.
func TestUnknownKeyWhileTheJWKSIsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second := newEdKey("a"), newEdKey("b")
		p := publish(t, first)
		tokens := newTestTokens(t, p.read)
		wantGood(t, tokens, first.lasting(t), "first use")
		p.set(errDown, 0)
		time.Sleep(fetchIntervalMin)
		wantRefused(t, tokens, second.lasting(t), false, "the token's key is unknown, and the JWKS is unavailable: connection refused", "down")
		wantGood(t, tokens, first.lasting(t), "down")
		p.now(t, first, second)
		time.Sleep(fetchIntervalMin)
		wantGood(t, tokens, second.lasting(t), "up again")
	})
}

// A page that is not a JWKS leaves the keys as they are; one without keys takes
// them all away.
func TestKeysThatAreGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		key := newEdKey("a")
		p := publish(t, key)
		tokens := newTestTokens(t, p.read)
		wantGood(t, tokens, key.lasting(t), "first use")
		p.mu.Lock()
		p.doc = []byte("<html>Down for maintenance</html>")
		p.mu.Unlock()
		time.Sleep(keysIdleAfter)
		wantGood(t, tokens, key.lasting(t), "no JWKS")
		p.wantReads(t, 2, "no JWKS")
		p.now(t)
		time.Sleep(keysIdleAfter)
		wantRefused(t, tokens, key.lasting(t), true, missingKey, "a JWKS without keys")
	})
}

func TestWaitingForKeysEndsWithTheCaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		key := newEdKey("a")
		p := publish(t, key)
		p.set(nil, 4*time.Second)
		tokens := newTestTokens(t, p.read)
		token := key.lasting(t)
		var other sync.WaitGroup
		other.Go(func() { wantGood(t, tokens, token, "who waits longer") })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := tokens.Verify(ctx, token)
		if !errors.Is(err, context.DeadlineExceeded) || isUnknown(err) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		other.Wait()
		p.wantReads(t, 1, "the fetch goes on for the others")
	})
}

// The read of a file on a disk that hangs does not end at its timeout. No second
// read starts while it hangs.
func TestFetchesRunOneAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		key := newEdKey("a")
		p := publish(t, key)
		p.set(nil, 4*fetchIntervalMin)
		tokens := newTestTokens(t, func(ctx context.Context) ([]byte, error) { return p.read(context.WithoutCancel(ctx)) })
		token := key.lasting(t)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { wantGood(t, tokens, token, "it came at last") })
			time.Sleep(fetchIntervalMin + time.Second)
		}
		all.Wait()
		if _, most := p.atOnce(); most != 1 || p.reads() != 1 {
			t.Errorf("%d reads, %d at a time", p.reads(), most)
		}
	})
}

func TestCloseTokens(t *testing.T) {
	bubble(t, func(t *testing.T) {
		key := newEdKey("a")
		p := publish(t, key)
		p.set(nil, 4*time.Second)
		tokens := newTestTokens(t, p.read)
		var waiting sync.WaitGroup
		waiting.Go(func() {
			wantRefused(t, tokens, key.lasting(t), false, errTokensClosed.Error(), "it waited")
		})
		synctest.Wait()
		began := time.Now()
		var all sync.WaitGroup
		for range 10 {
			all.Go(tokens.Close)
		}
		all.Wait()
		waiting.Wait()
		if running, _ := p.atOnce(); running > 0 || time.Since(began) > 0 {
			t.Errorf("closed after %v, %d reads run", time.Since(began), running)
		}
		time.Sleep(time.Minute)
		wantRefused(t, tokens, key.lasting(t), false, errTokensClosed.Error(), "closed")
		p.wantReads(t, 1, "closed")
	})
}

func TestWhatIsSaidOfTheJWKS(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var out fixture.Buffer
		said := 0 // bytes of it that were checked
		lines := fixture.Must(obs.NewLog(&out, "info", "text"))(t)
		key := newEdKey("a")
		p := publish(t, key, shortKey())
		tokens := newTestTokens(t, p.read, func(c *TokensConfig) { c.Log = lines })
		token := key.lasting(t)
		told := func(when string, want ...string) {
			t.Helper()
			wantGood(t, tokens, token, when)
			text := out.String()[said:]
			said += len(text)
			for _, w := range want {
				if !strings.Contains(text, w) {
					t.Errorf("%s: %q, want %q", when, text, w)
				}
			}
			if lines := strings.Count(text, "\n"); lines != len(want) {
				t.Errorf("%s: %d lines, want %d: %s", when, lines, len(want), text)
			}
			if strings.Contains(text, "marker") {
				t.Errorf("%s: the log repeats a token: %s", when, text)
			}
		}
		told("first use", "JWKS loaded", "it has 1024 bits")
		time.Sleep(keysIdleAfter)
		told("nothing new")
		p.set(errDown, 0)
		time.Sleep(keysIdleAfter)
		told("down", "connection refused")
		p.set(nil, 0)
		time.Sleep(keysIdleAfter)
		told("up again", "JWKS available again")
	})
}

// servePipes runs a web server on fake time and returns what reads from it.
func servePipes(t *testing.T, handler http.HandlerFunc) func(context.Context) ([]byte, error) {
	t.Helper()
	listener := fixture.NewListener()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Hour}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Close()
		serving.Wait()
	})
	transport := newJWKSTransport("http")
	transport.DialContext = listener.Dial
	return func(ctx context.Context) ([]byte, error) { return fetchJWKS(ctx, transport, "http://127.0.0.1/keys") }
}

func TestSlowPublishers(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"NoAnswer": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"SlowDrip": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(time.Second):
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				tokens := newTestTokens(t, servePipes(t, handler))
				began := time.Now()
				wantRefused(t, tokens, newEdKey("a").lasting(t), false, "it did not arrive within 5s", name)
				if took := time.Since(began); took != jwksTimeout {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// tokensAt reads its keys over real connections, or from a real file.
func tokensAt(t *testing.T, jwks string) *TokenVerifier {
	t.Helper()
	tokens := fixture.Must(NewTokens(TokensConfig{JWKS: jwks, Issuer: testIssuer, Audience: testAudience, UserClaim: "sub", RoleClaim: "role"}))(t)
	t.Cleanup(tokens.Close)
	return tokens
}

func TestAnswersOfPublishers(t *testing.T) {
	t.Parallel()
	key := newEdKey("a")
	doc := jwksOf(t, key)
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(doc) }))
	t.Cleanup(other.Close)
	reply := func(status int, header http.Header, body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for name, values := range header {
				w.Header()[name] = values
			}
			w.WriteHeader(status)
			_, _ = w.Write(body)
		}
	}
	to := func(url string) http.Header { return http.Header{"Location": {url}} }
	padded := func(n int) []byte { return append(bytes.Repeat([]byte(" "), n-len(doc)), doc...) }
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		says    string // "" = the keys are there
	}{
		"Plain":          {reply(200, nil, doc), ""},
		"OtherType":      {reply(200, http.Header{"Content-Type": {"text/html"}}, doc), ""},
		"Longest":        {reply(200, nil, padded(1<<20)), ""},
		"TooLong":        {reply(200, nil, padded(1<<20+1)), "longer than 1048576 bytes"},
		"Endless":        {func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, endless{}) }, "longer than 1048576 bytes"},
		"LongHeaders":    {reply(200, http.Header{"X": {strings.Repeat("x", 1<<17)}}, doc), "server response headers exceeded"},
		"Packed":         {reply(200, http.Header{"Content-Encoding": {"gzip"}}, packed(t, doc)), "it is not a JWKS"},
		"NotFound":       {reply(404, nil, doc), "status 404"},
		"NoContent":      {reply(204, nil, nil), "status 204"},
		"Unavailable":    {reply(503, nil, doc), "status 503"},
		"Empty":          {reply(200, nil, nil), "it is not a JWKS"},
		"Cut":            {reply(200, http.Header{"Content-Length": {"9999"}}, doc), "unexpected EOF"},
		"Redirect":       {redirected(3, doc), ""},
		"RedirectsTwice": {redirected(4, doc), "redirects more than 3 times"},
		"ToOtherScheme":  {reply(302, to(other.URL), nil), "redirects to another scheme"},
		"ToAFile":        {reply(302, to("file:///etc/passwd"), nil), "redirects to another scheme"},
		"ToAnywhere":     {reply(302, to("http://192.0.2.1/keys"), nil), "is allowed for loopback addresses only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(c.handler)
			t.Cleanup(server.Close)
			tokens := tokensAt(t, server.URL+"/?marker")
			token := key.token(t, "EdDSA")
			if c.says == "" {
				wantGood(t, tokens, token, name)
				return
			}
			_, err := tokens.Verify(t.Context(), token)
			wantFault(t, err, false, c.says, token)
		})
	}
}

// endless is a body that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte(" "), len(p))), nil }

func packed(t testing.TB, doc []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	fixture.Must(w.Write(doc))(t)
	fixture.OK(t, w.Close())
	return out.Bytes()
}

// redirected answers after n redirects.
func redirected(n int, doc []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if len(r.URL.Path)-1 < n {
			w.Header().Set("Location", r.URL.Path+"x?marker")
			w.WriteHeader(http.StatusFound)
			return
		}
		_, _ = w.Write(doc)
	}
}

func TestKeysOverTLS(t *testing.T) {
	t.Parallel()
	key := newEdKey("a")
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(jwksOf(t, key)) }))
	t.Cleanup(plain.Close)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, plain.URL, http.StatusFound)
			return
		}
		_, _ = w.Write(jwksOf(t, key))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of a handshake that is meant to fail
	server.StartTLS()
	t.Cleanup(server.Close)
	trusting := func(path string) *TokenVerifier {
		transport := newJWKSTransport("https")
		roots := x509.NewCertPool()
		roots.AddCert(server.Certificate())
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		return newTestTokens(t, func(ctx context.Context) ([]byte, error) { return fetchJWKS(ctx, transport, server.URL+path) })
	}
	token := key.token(t, "EdDSA")
	wantGood(t, trusting("/"), token, "with its certificate")
	_, err := trusting("/down").Verify(t.Context(), token)
	wantFault(t, err, false, "redirects to another scheme", token)
	_, err = tokensAt(t, server.URL).Verify(t.Context(), token)
	wantFault(t, err, false, "certificate", token)
}

func TestHTTPStaysOnLoopback(t *testing.T) {
	t.Parallel()
	for address, good := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "[::ffff:127.0.0.1]:80": true, "127.9.9.9:80": true,
		"192.0.2.1:80": false, "0.0.0.0:80": false, "[fe80::1]:80": false, "169.254.169.254:80": false, "marker": false,
	} {
		if err := requireLoopback("tcp", address, syscall.RawConn(nil)); (err == nil) != good {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestKeysInAFile(t *testing.T) {
	t.Parallel()
	first, second := newEdKey("a"), newEdKey("b")
	dir := t.TempDir()
	file := filepath.Join(dir, "jwks.json")
	write := func(doc []byte) {
		t.Helper()
		fixture.OK(t, os.WriteFile(file, doc, 0o600))
	}
	synctest.Test(t, func(t *testing.T) {
		tokens := tokensAt(t, file)
		wantRefused(t, tokens, first.lasting(t), false, "no such file", "before it is there")
		write(jwksOf(t, first))
		time.Sleep(fetchIntervalMin)
		wantGood(t, tokens, first.lasting(t), "it is there")
		write(jwksOf(t, second))
		time.Sleep(fetchIntervalMin)
		wantGood(t, tokens, second.lasting(t), "rotated")
		wantRefused(t, tokens, first.lasting(t), true, missingKey, "rotated")
		write(bytes.Repeat([]byte(" "), 1<<20+1))
		time.Sleep(fetchIntervalMin)
		wantRefused(t, tokens, first.lasting(t), false, "longer than 1048576 bytes", "too long")

		fixture.OK(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
		for _, odd := range []string{dir, filepath.Join(dir, "fifo"), "/dev/zero"} {
			wantRefused(t, tokensAt(t, odd), first.lasting(t), false, "is not a regular file", odd)
		}
	})
}
