package largesse

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
)

// through returns an HTTP client whose calls a handler in this process answers.
func through(h http.HandlerFunc) *http.Client {
	up := make(chan struct{})
	close(up)
	return &http.Client{Transport: &transport{handler: h, up: up, over: make(chan struct{})}}
}

func request(ctx context.Context, t *testing.T, method string, body io.Reader) *http.Request {
	t.Helper()
	return fixture.Must(http.NewRequestWithContext(ctx, method, "http://in-process/a%2Fb?q=1", body))(t)
}

func TestTransportStreamsBothWays(t *testing.T) {
	t.Parallel()
	c := through(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != "/a%2Fb" || r.URL.Host != "" || r.RequestURI != "/a%2Fb?q=1" || r.Host != "in-process" || r.ContentLength != -1 {
			t.Errorf("%+v", r)
		}
		w.Header().Set("X-Kind", "echo")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-Kind", "too late")
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintf(w, "%s!\n", lines.Text())
		}
	})
	input, lines := io.Pipe()
	res, err := c.Do(request(t.Context(), t, http.MethodPost, input))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get("X-Kind") != "echo" || res.ContentLength != -1 {
		t.Errorf("%+v", res)
	}
	answers := bufio.NewReader(res.Body)
	for _, word := range []string{"one", "two"} { // each answer comes before the next line is sent
		fmt.Fprintln(lines, word)
		if got, err := answers.ReadString('\n'); err != nil || got != word+"!\n" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	_ = lines.Close()
	if rest, err := io.ReadAll(answers); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestTransportAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		method  string
		handler http.HandlerFunc
		status  int
		body    string
		length  int64
	}{
		"Nothing": {http.MethodGet, func(http.ResponseWriter, *http.Request) {}, 200, "", -1},
		"Status": {http.MethodGet, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			w.WriteHeader(http.StatusInternalServerError)
		}, 404, "", -1},
		"EarlyHint": {http.MethodGet, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusCreated)
		}, 201, "", -1},
		"Length": {http.MethodGet, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			_, _ = io.WriteString(w, "ok")
		}, 200, "ok", 2},
		"Head": {http.MethodHead, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }, 200, "", -1},
		"NoContent": {http.MethodGet, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "ok"); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("Write = %v", err)
			}
		}, 204, "", -1},
		"UnreadBody": {http.MethodPost, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, 401, "", -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := &closeTold{Reader: strings.NewReader("a long body"), closed: make(chan struct{})}
			res, err := through(tc.handler).Do(request(t.Context(), t, tc.method, body))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != tc.status || string(text) != tc.body || res.ContentLength != tc.length {
				t.Errorf("%d %q %d, %v", res.StatusCode, text, res.ContentLength, err)
			}
			_ = res.Body.Close()
			<-body.closed
		})
	}
}

// closeTold is a body that reports when it is closed.
type closeTold struct {
	io.Reader
	closed chan struct{}
}

func (b *closeTold) Close() error {
	close(b.closed)
	return nil
}

// A truncated response is never mistaken for a complete one.
func TestTransportIsCut(t *testing.T) {
	t.Parallel()
	for name, sends := range map[string]bool{"BeforeTheAnswer": false, "WithinTheAnswer": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, err := through(func(w http.ResponseWriter, _ *http.Request) {
				if sends {
					_, _ = io.WriteString(w, "half")
				}
				panic(http.ErrAbortHandler)
			}).Do(request(t.Context(), t, http.MethodGet, nil))
			if (err == nil) != sends {
				t.Fatalf("Do = %v", err)
			}
			if !sends {
				return
			}
			defer res.Body.Close()
			if text, err := io.ReadAll(res.Body); err == nil || string(text) != "half" {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
}

// The handler hears that its caller has gone, and the caller that it is over.
func TestTransportEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(cancel context.CancelFunc, res *http.Response){
		"ContextEnds": func(cancel context.CancelFunc, _ *http.Response) { cancel() },
		"BodyCloses":  func(_ context.CancelFunc, res *http.Response) { _ = res.Body.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			res, err := through(func(w http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(w).Flush()
				for {
					if _, err := io.WriteString(w, "more"); err != nil {
						<-r.Context().Done()
						ended <- err
						return
					}
				}
			}).Do(request(ctx, t, http.MethodGet, nil))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			end(cancel, res)
			if err := <-ended; err == nil {
				t.Error("the handler could write on")
			}
			if _, err := io.ReadAll(res.Body); err == nil {
				t.Error("the answer looks whole")
			}
		})
	}
	t.Run("NobodyAnswers", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := through(func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			<-r.Context().Done()
		}).Do(request(ctx, t, http.MethodGet, nil)) //nolint:bodyclose // there is none
		if !errors.Is(err, context.Canceled) && err != nil {
			t.Errorf("Do = %v", err)
		}
	})
}

// An error has the meaning of the error that it wraps, and none if it wraps two.
func TestMeaning(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err        error
		class      reward.AnswerClass // "": unknown
		notCharged bool
	}{
		"Plain":         {errors.New("reset"), "", false},
		"Refused":       {ErrRefused, reward.AnswerRefused, false},
		"Failed":        {ErrFailed, reward.AnswerFailed, false},
		"Throttled":     {ErrThrottled, reward.AnswerThrottled, false},
		"Misconfigured": {ErrMisconfigured, reward.AnswerMisconfigured, false},
		"NotSent":       {ErrNotSent, reward.AnswerNotSent, false},
		"NotCharged":    {ErrNotCharged, "", true},
		"Wrapped":       {fmt.Errorf("bank: %w", &ProviderError{Err: fmt.Errorf("so: %w", ErrRefused), Code: "C"}), reward.AnswerRefused, false},
		"NoCause":       {&ProviderError{Code: "C"}, "", false},
		"OtherCause":    {&ProviderError{Err: io.EOF}, "", false},
		"TwoThings":     {errors.Join(ErrRefused, ErrNotSent), "", false},
		"Contradiction": {&ProviderError{Err: errors.Join(ErrFailed, ErrNotCharged)}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said *money.LocalError
			if !errors.As(meaning(tc.err), &said) {
				said = &money.LocalError{}
			}
			if said.Class != tc.class || said.NotCharged != tc.notCharged {
				t.Errorf("%+v", said)
			}
			if p := new(ProviderError); errors.As(tc.err, &p) && said.Class != "" && said.Code != p.Code {
				t.Errorf("the code %q is lost", p.Code)
			}
			if !errors.Is(meaning(tc.err), tc.err) {
				t.Error("the cause is lost")
			}
		})
	}
	if meaning(nil) != nil {
		t.Error("no error means something")
	}
}

// lastCharge stores the last charge.
type lastCharge struct{ got Charge }

func (p *lastCharge) Charge(_ context.Context, c Charge) (string, error) {
	p.got = c
	return "T", c.Confirm()
}

func (p *lastCharge) Lookup(context.Context, string) (string, error) { return "", ErrNotCharged }

func TestAdapterPassesTheChargeOn(t *testing.T) {
	t.Parallel()
	paused, p := errors.New("paused"), &lastCharge{}
	_, err := adapter{p}.Charge(t.Context(), money.LocalCharge{
		Charge: money.Charge{PromotionID: 3, TargetID: 9, UserID: "u", Amount: 5, VoucherCode: "V"}, Key: "3:9", Type: reward.Voucher,
		Confirm: func() error { return paused },
	})
	p.got.confirm = nil
	want := Charge{Key: "3:9", Type: "VOUCHER", UserID: "u", VoucherCode: "V", PromotionID: 3, TargetID: 9, Amount: 5}
	if p.got != want || !errors.Is(err, paused) {
		t.Errorf("%+v, %v", p.got, err)
	}
}
