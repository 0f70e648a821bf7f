// Package instance runs Largesse in this process for tests that use it with programs of
// others: with embedded engines, a simulated provider, and a sign-in by token.
package instance

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
)

const (
	// tokenParty is the issuer and the audience of tokens.
	tokenParty = "https://largesse.invalid" //nolint:gosec // an address, no credentials
	// tokenTTL is longer than any test takes.
	tokenTTL = 3 * time.Hour
	// kafkaUser and kafkaPassword are the login of the embedded broker, which asks for one
	// because the instance requires keys or tokens.
	kafkaUser, kafkaPassword = "tester", "for a test only"
	// recordInterval separates two records of KeepPublishing.
	recordInterval = 200 * time.Millisecond
	// refuseRate is the share of payouts that the provider refuses.
	refuseRate = 0.2
)

// Instance is a running Largesse. It requires a token or an API key.
type Instance struct {
	URL string
	// Token belongs to an admin, and Maker to another person, who is an operator. No test
	// can revoke them.
	Token, Maker string

	t      *testing.T
	sim    *moneysim.Server
	broker string
}

// Start runs an instance until the end of the test, with more settings by name if there
// are some. The test fails if the instance ends earlier.
func Start(t *testing.T, more map[string]string) *Instance {
	t.Helper()
	in := &Instance{t: t}
	var err error
	if in.sim, err = moneysim.New(moneysim.Config{Faults: moneysim.Faults{RefuseRate: refuseRate}, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.sim.Close)
	money := fixture.Must(in.sim.Start("127.0.0.1:0"))(t)
	dir := t.TempDir()
	password, jwks := filepath.Join(dir, "kafka-password"), filepath.Join(dir, "jwks.json")
	fixture.OK(t, os.WriteFile(password, []byte(kafkaPassword), 0o600))
	in.signTokens(jwks)
	program := map[string]config.Value{}
	for _, settings := range []map[string]string{{
		"data.dir": filepath.Join(dir, "data"), "http.listen": "127.0.0.1:0",
		"money.url": "http://" + money, "money.timeout": "10s", "money.give-up-after": "1s", "money.settle-after": "1h",
		"kafka.sasl-mechanism": "SCRAM-SHA-256", "kafka.sasl-user": kafkaUser, "kafka.sasl-password-file": password,
		"auth.mode": "jwt", "auth.jwt.jwks": jwks, "auth.jwt.issuer": tokenParty, "auth.jwt.audience": tokenParty,
	}, more} {
		for name, text := range settings {
			program[name] = config.Value{Text: text, Source: "test"}
		}
	}
	cfg, _, err := config.Load(config.LoadParams{Program: program})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	e := fixture.Must(engine.New(cfg, obs.FromSlog(log)))(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	up, over := make(chan struct{}), make(chan error, 1)
	go func() {
		err := e.Run(ctx, func() error { close(up); return nil })
		if ctx.Err() == nil {
			t.Errorf("the instance has ended: %v", err)
		}
		over <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-up:
	case err := <-over:
		over <- nil
		t.Fatal(err)
	}
	in.URL, in.broker = e.URL(), e.Brokers()[0]
	return in
}

// signTokens writes a JWKS to a file, and signs the tokens that it verifies.
func (in *Instance) signTokens(jwks string) {
	in.t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		in.t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	keys := fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":%q}]}`, encode(public))
	fixture.OK(in.t, os.WriteFile(jwks, []byte(keys), 0o600))
	now := time.Now()
	token := func(person, role string) string {
		text := encode([]byte(`{"alg":"EdDSA","typ":"JWT","kid":"1"}`)) + "." + encode(fmt.Appendf(nil, `{"iss":%q,"aud":%q,"sub":%q,"role":%q,"iat":%d,"exp":%d}`,
			tokenParty, tokenParty, person, role, now.Unix(), now.Add(tokenTTL).Unix()))
		return text + "." + encode(ed25519.Sign(private, []byte(text)))
	}
	in.Token, in.Maker = token("tester", "admin"), token("maker", "operator")
}

// Call sends a request and returns the status and the body of the response. token is a
// token or an API key.
func (in *Instance) Call(token, method, path, contentType, body string) (status int, answer string) {
	in.t.Helper()
	req, err := http.NewRequestWithContext(in.t.Context(), method, in.URL+path, strings.NewReader(body))
	if err != nil {
		in.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Prefer", "wait=10") // for the coupon
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		in.t.Fatal(err)
	}
	defer res.Body.Close()
	text := fixture.Must(io.ReadAll(res.Body))(in.t)
	return res.StatusCode, string(text)
}

// Send is Call for a request that must succeed. It repeats one for which the instance is
// unavailable, because a draw is running.
func (in *Instance) Send(token, method, path, contentType, body string) (answer string) {
	in.t.Helper()
	status := 0
	fixture.Until(in.t, method+" "+path+" is possible", func() bool {
		status, answer = in.Call(token, method, path, contentType, body)
		return status != http.StatusServiceUnavailable
	})
	if status >= http.StatusBadRequest {
		in.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	return answer
}

// Post sends JSON as an admin.
func (in *Instance) Post(path, body string) (answer string) {
	in.t.Helper()
	return in.Send(in.Token, http.MethodPost, path, "application/json", body)
}

// Await reads a path until the response matches a pattern.
func (in *Instance) Await(path, pattern string) {
	in.t.Helper()
	want, answer := regexp.MustCompile(pattern), ""
	defer func() {
		if in.t.Failed() {
			in.t.Logf("last response of %s: %s", path, answer)
		}
	}()
	fixture.Until(in.t, path+" matches "+pattern, func() bool {
		answer = in.Send(in.Token, http.MethodGet, path, "", "")
		return want.MatchString(answer)
	})
}

// Promotion creates a promotion and uploads 30 targets and one invalid line. It returns
// the answer to the upload.
func (in *Instance) Promotion(token string, id int, kind, more string) (answer string) {
	in.t.Helper()
	in.Send(token, http.MethodPost, "/v1/promotions", "application/json",
		fmt.Sprintf(`{"id":%d,"name":"Spring %d","type":%q,"amount":100,"currency":"EUR"%s}`, id, id, kind, more))
	var file strings.Builder
	file.WriteString("targetId\nx\n")
	for n := range 30 {
		fmt.Fprintln(&file, n)
	}
	return in.Send(token, http.MethodPost, fmt.Sprintf("/v1/promotions/%d/targets", id), "text/csv", file.String())
}

// UnknownPayouts pays a promotion while the provider resets every connection. Its 30
// payouts stay UNKNOWN, because a lookup that finds nothing is not yet conclusive.
func (in *Instance) UnknownPayouts(promotion int) {
	in.t.Helper()
	in.setFaults(moneysim.Faults{ResetBeforeRate: 1})
	in.Promotion(in.Token, promotion, "POINT", "")
	path := fmt.Sprintf("/v1/promotions/%d", promotion)
	in.Post(path+"/start", "")
	in.Await(path, `"status":"COMPLETED".*"unknown":30`)
	in.setFaults(moneysim.Faults{RefuseRate: refuseRate})
}

func (in *Instance) setFaults(f moneysim.Faults) {
	in.t.Helper()
	fixture.OK(in.t, in.sim.SetFaults(f))
}

// Publish publishes records to a topic.
func (in *Instance) Publish(topic string, values ...string) {
	in.t.Helper()
	kafka := in.publisher()
	defer kafka.Close()
	for _, value := range values {
		if err := kafka.ProduceSync(in.t.Context(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
			in.t.Fatalf("publish to %s: %v", topic, err)
		}
	}
}

// KeepPublishing publishes a record again and again, until stop is called.
func (in *Instance) KeepPublishing(topic, value string) (stop func() error) {
	in.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	kafka := in.publisher()
	go func() {
		defer kafka.Close()
		next := time.NewTicker(recordInterval)
		defer next.Stop()
		for ctx.Err() == nil {
			if err := kafka.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil && ctx.Err() == nil {
				failed <- err
				return
			}
			select {
			case <-next.C:
			case <-ctx.Done():
			}
		}
		failed <- nil
	}()
	return func() error {
		cancel()
		return <-failed
	}
}

// publisher returns a client of the instance's broker.
func (in *Instance) publisher() *kgo.Client {
	in.t.Helper()
	login := scram.Auth{User: kafkaUser, Pass: kafkaPassword}
	return fixture.Must(kgo.NewClient(kgo.SeedBrokers(in.broker), kgo.SASL(login.AsSha256Mechanism())))(in.t)
}
