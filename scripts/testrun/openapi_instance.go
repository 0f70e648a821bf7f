package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/largesse/largesse/internal/lab/fleet"
)

const (
	// startTimeout limits the start of an instance, and each wait for the outcome
	// of a seed.
	startTimeout = time.Minute
	callTimeout  = time.Minute
	// seedInterval separates two reads that wait for the outcome of a seed.
	seedInterval = 100 * time.Millisecond
	// recordInterval separates two unreadable records.
	recordInterval = 200 * time.Millisecond
	// tokenParty is the issuer and the audience of tokens.
	tokenParty = "https://largesse.invalid" //nolint:gosec // an address, no credentials
	// tokenTTL is longer than any suite takes.
	tokenTTL = time.Hour
	// kafkaUser and kafkaPassword are the login of the embedded broker, which asks for one
	// because the instance requires keys or tokens.
	kafkaUser, kafkaPassword = "tester", "for a test only"
	// reportedPromotion is the promotion whose upload has a report to read.
	reportedPromotion = 2
	// unknownPromotion is the promotion with UNKNOWN payouts.
	unknownPromotion = "2700"
)

// instance is a running Largesse with embedded engines and a simulated provider.
// It requires a token or an API key.
type instance struct {
	server, kafka, money string
	token                string // of an admin; the tests may revoke every key
	maker                string // token of another person, who is an operator
	uploadID             string // of the upload to reportedPromotion

	cancel func()
	done   chan error // receives the end of each process
	left   int        // processes that run
	log    *printed
}

// printed keeps the last lines that processes print. It is safe for concurrent
// use.
type printed struct {
	mu    sync.Mutex // protects lines
	lines []string
}

func (p *printed) add(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = keepEnds(append(p.lines, line))
}

func (p *printed) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// startInstance builds the binary and starts it, with more flags if there are some.
func startInstance(ctx context.Context, root, dir string, more ...string) (*instance, error) {
	binary, data := filepath.Join(dir, "largesse"), filepath.Join(dir, "data")
	if text, err := fleet.Output(ctx, root, nil, "go", "build", "-o", binary, "./cmd/largesse"); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	jwks := filepath.Join(dir, "jwks.json")
	tokens, err := newTokens(jwks, "tester", "admin", "maker", "operator")
	if err != nil {
		return nil, fmt.Errorf("sign the tokens: %w", err)
	}
	password := filepath.Join(dir, "kafka-password")
	if err := os.WriteFile(password, []byte(kafkaPassword), 0o600); err != nil {
		return nil, fmt.Errorf("write the password of Kafka: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	in := &instance{token: tokens[0], maker: tokens[1], cancel: cancel, done: make(chan error, 2), log: &printed{}}
	in.money, err = in.start(ctx, dir, "listens on ", binary, "moneysim", "--listen", "127.0.0.1:0", "--refuse-rate", "0.2")
	if err == nil {
		// Without webhook.secret nothing calls the invented webhook addresses.
		in.server, err = in.start(ctx, dir, "serving on ", binary, append([]string{
			"serve", "--data-dir", data, "--listen", "127.0.0.1:0",
			"--money-url", in.money, "--money-timeout", "300ms", "--money-give-up-after", "1s", "--money-settle-after", "1h",
			"--kafka-sasl-mechanism", "SCRAM-SHA-256", "--kafka-sasl-user", kafkaUser, "--kafka-sasl-password-file", password,
			"--auth-mode", "jwt",
			"--auth-jwt-jwks", jwks, "--auth-jwt-issuer", tokenParty, "--auth-jwt-audience", tokenParty, "--log-level", "warn",
		}, more...)...)
	}
	if err != nil {
		in.stop()
		return nil, fmt.Errorf("%w\n%s", err, in.log.text())
	}
	in.server, in.kafka, _ = strings.Cut(in.server, ", Kafka at ")
	return in, nil
}

// start starts a process and returns the address that it prints after prefix.
func (in *instance) start(ctx context.Context, dir, prefix, binary string, args ...string) (string, error) {
	said := make(chan string, 1)
	in.left++
	go func() {
		in.done <- fleet.Lines(ctx, dir, nil, func(line string) {
			in.log.add(line)
			if _, where, ok := strings.Cut(line, prefix); ok {
				select {
				case said <- where:
				default:
				}
			}
		}, binary, args...)
	}()
	select {
	case where := <-said:
		return where, nil
	case err := <-in.done:
		in.left--
		return "", fmt.Errorf("%s %s ended early: %w", filepath.Base(binary), args[0], err)
	case <-time.After(startTimeout):
		return "", fmt.Errorf("%s %s did not print %q within %s", filepath.Base(binary), args[0], prefix, startTimeout)
	}
}

// ended returns an error when a process has ended that should be running.
func (in *instance) ended() error {
	select {
	case err := <-in.done:
		in.left--
		return fmt.Errorf("a process ended during the run: %w", err)
	default:
		return nil
	}
}

// stop kills the processes and waits for their end.
func (in *instance) stop() {
	in.cancel()
	for ; in.left > 0; in.left-- {
		<-in.done //nolint:errcheck // the kill is why they ended
	}
}

// newTokens writes a JWKS to the file jwks, and returns a token that it verifies for
// each pair of a subject and its role.
func newTokens(jwks string, people ...string) (tokens []string, err error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	encode := base64.RawURLEncoding.EncodeToString
	keys := fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":%q}]}`, encode(public))
	if err := os.WriteFile(jwks, []byte(keys), 0o600); err != nil {
		return nil, err
	}
	now := time.Now()
	for person := range slices.Chunk(people, 2) {
		text := encode([]byte(`{"alg":"EdDSA","typ":"JWT","kid":"1"}`)) + "." + encode(fmt.Appendf(nil, `{"iss":%q,"aud":%q,"sub":%q,"role":%q,"iat":%d,"exp":%d}`,
			tokenParty, tokenParty, person[0], person[1], now.Unix(), now.Add(tokenTTL).Unix()))
		tokens = append(tokens, text+"."+encode(ed25519.Sign(private, []byte(text))))
	}
	return tokens, nil
}

// errUnavailable is a request that the instance asks to repeat in a moment: it is
// starting, or a draw is running.
var errUnavailable = errors.New("503 Service Unavailable")

// request is an HTTP request; key is an API key or a token.
type request struct{ method, url, key, contentType, body string }

// send returns the body of the response. A status from 400 is an error.
func (r request) send(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, strings.NewReader(r.body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+r.key)
	req.Header.Set("Content-Type", r.contentType)
	req.Header.Set("Prefer", "wait=10") // for the coupon
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
	case answer.StatusCode == http.StatusServiceUnavailable:
		err = errUnavailable
	case answer.StatusCode >= http.StatusBadRequest:
		err = errors.New(answer.Status)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w %s", r.method, r.url, err, text)
	}
	return string(text), nil
}

// seeding creates at least one of everything in an instance.
type seeding struct {
	ctx context.Context
	in  *instance
	err error // the first one; then nothing more is sent
}

// send repeats a request for which the instance is unavailable.
func (s *seeding) send(key, method, url, contentType, body string) string {
	if s.err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(s.ctx, startTimeout)
	defer cancel()
	for {
		answer, err := request{method, url, key, contentType, body}.send(ctx)
		if !errors.Is(err, errUnavailable) {
			s.err = err
			return answer
		}
		select {
		case <-time.After(seedInterval):
		case <-ctx.Done():
			s.err = err
			return ""
		}
	}
}

func (s *seeding) post(path, body string) {
	s.send(s.in.token, http.MethodPost, s.in.server+path, "application/json", body)
}

// until reads path until the response matches pattern.
func (s *seeding) until(path, pattern string) {
	ctx, cancel := context.WithTimeout(s.ctx, startTimeout)
	defer cancel()
	for s.err == nil {
		answer := s.send(s.in.token, http.MethodGet, s.in.server+path, "", "")
		if s.err != nil || regexp.MustCompile(pattern).MatchString(answer) {
			return
		}
		select {
		case <-time.After(seedInterval):
		case <-ctx.Done():
			s.err = fmt.Errorf("GET %s did not match %s in time: %s", path, pattern, answer)
		}
	}
}

// promotion creates a promotion and uploads 30 targets and one invalid line.
func (s *seeding) promotion(key string, id int, kind, more string, moves ...string) {
	path := s.in.server + "/v1/promotions"
	s.send(key, http.MethodPost, path, "application/json",
		fmt.Sprintf(`{"id":%d,"name":"Spring %d","type":%q,"amount":100,"currency":"EUR"%s}`, id, id, kind, more))
	path += "/" + strconv.Itoa(id)
	file := "targetId\nx\n"
	for n := range 30 {
		file += strconv.Itoa(n) + "\n"
	}
	result := s.send(key, http.MethodPost, path+"/targets", "text/csv", file)
	if m := regexp.MustCompile(`"uploadId":"(\d+)"`).FindStringSubmatch(result); id == reportedPromotion && m != nil {
		s.in.uploadID = m[1]
	}
	for _, move := range moves {
		s.send(s.in.token, http.MethodPost, path+"/"+move, "application/json", "")
	}
}

// template creates a coupon template and requests a coupon of it per user.
func (s *seeding) template(id int, more string, users ...string) {
	s.post("/v1/coupon-templates", fmt.Sprintf(`{"id":%d,"name":"Drop %d"%s}`, id, id, more))
	for _, user := range users {
		s.post(fmt.Sprintf("/v1/coupons/%d/issue", id), fmt.Sprintf(`{"userId":%q}`, user))
	}
}

// leave makes a request of a user and lets the user leave the waiting line. It repeats
// both until the request was still in line.
func (s *seeding) leave(id int, user string) {
	ctx, cancel := context.WithTimeout(s.ctx, startTimeout)
	defer cancel()
	for s.err == nil {
		answered := make(chan error, 1)
		go func() {
			_, err := request{http.MethodPost, fmt.Sprintf("%s/v1/coupons/%d/issue", s.in.server, id), s.in.token, "application/json", fmt.Sprintf(`{"userId":%q}`, user)}.send(ctx)
			answered <- err
		}()
		for waits := true; waits && s.err == nil; {
			_, err := request{http.MethodDelete, fmt.Sprintf("%s/v1/issue-requests/%d:%s", s.in.server, id, user), s.in.token, "", ""}.send(ctx)
			if err == nil {
				<-answered //nolint:errcheck // a user who left has no coupon
				return
			}
			select {
			case err := <-answered:
				waits = false
				if !errors.Is(err, errUnavailable) {
					s.err = err
				}
			default:
			}
		}
	}
}

// seed fills the instance. The description's examples name the ids 12345, 42 and
// u7; schemathesis.toml names those from 2000.
func (in *instance) seed(ctx context.Context) error {
	s := &seeding{ctx: ctx, in: in}
	s.promotion(in.token, 12345, "POINT", "")
	s.promotion(in.token, 1, "POINT", `,"startsAt":"2100-01-01T00:00:00Z","canary":{"targets":1}`)
	s.promotion(in.token, reportedPromotion, "VOUCHER", `,"voucherCode":"V-1000"`, "start", "close")
	s.until("/v1/promotions/2", `"status":"COMPLETED"`)
	for n := range 5 {
		s.promotion(in.token, 2000+n, "POINT", "")                        // to start
		s.promotion(in.token, 2100+n, "POINT", "")                        // to delete
		s.promotion(in.maker, 2200+n, "POINT", "")                        // to approve
		s.promotion(in.token, 2300+n, "POINT", `,"weight":2`)             // to pause
		s.promotion(in.token, 2400+n, "POINT", "", "start", "pause")      // to resume
		s.promotion(in.token, 2500+n, "VOUCHER", `,"voucherCode":"V-10"`) // to cancel
		s.promotion(in.token, 2600+n, "POINT", "")                        // to close
		s.promotion(in.token, 2800+n, "POINT", "")                        // to reject
	}
	if s.err == nil {
		s.err = in.announce(ctx, 12345, 2300, 2301, 2302, 2303, 2304)
	}
	s.until("/v1/promotions/2304", `"status":"RUNNING".*"succeeded":[1-9]`)
	s.until("/v1/dead-letters", `"status":"OPEN"`)
	// The provider resets every connection for a while. The payouts become UNKNOWN
	// and stay so, since a lookup that finds nothing is not yet conclusive.
	s.send("", http.MethodPut, in.money+"/faults", "application/json", `{"resetBeforeRate":1}`)
	s.promotion(in.token, 2700, "POINT", "", "start")
	s.until("/v1/promotions/2700", `"status":"COMPLETED".*"unknown":30`)
	s.send("", http.MethodPut, in.money+"/faults", "application/json", `{"refuseRate":0.2}`)

	s.template(42, `,"totalQuantity":1000,"perUserLimit":2`)
	codes := "code\n"
	for n := range 1000 {
		codes += fmt.Sprintf("SUMMER-%d\n", n)
	}
	s.send(in.token, http.MethodPost, in.server+"/v1/coupon-templates/42/codes", "text/csv", codes)
	for _, user := range []string{"u1", "u2", "u7", "u7"} {
		s.post("/v1/coupons/42/issue", fmt.Sprintf(`{"userId":%q}`, user))
	}
	s.template(43, `,"totalQuantity":10,"opensAt":"2100-01-01T00:00:00Z"`)
	s.template(44, `,"totalQuantity":10,"mode":"KAFKA"`, "u7")
	soon := time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339Nano)
	s.template(45, `,"totalQuantity":10,"opensAt":"`+soon+`","draw":{"from":"2000-01-01T00:00:00Z"}`, "u7", "u8")
	s.template(46, `,"totalQuantity":1,"mode":"SYNC","validForSeconds":1`, "u7")
	s.until("/v1/coupon-templates/45", `"state":"DONE"`)
	s.template(47, `,"totalQuantity":100000,"perUserLimit":100,"mode":"KAFKA"`)
	s.leave(47, "leaver")
	s.template(48, `,"totalQuantity":2`)
	s.send(in.token, http.MethodPost, in.server+"/v1/coupon-templates/48/codes", "text/csv", "code\nSPRING-1\nSPRING-2\n")
	s.post("/v1/coupon-templates/44/close", "")
	s.post("/v1/reconciliations", `{"promotionId":2}`)
	return s.err
}

// balanced returns an error when the books do not balance. It ignores the
// promotion with UNKNOWN payouts, which schemathesis resolves with invented
// outcomes.
func (in *instance) balanced(ctx context.Context) error {
	answer, err := request{http.MethodPost, in.server + "/v1/reconciliations", in.token, "application/json", "{}"}.send(ctx)
	if err != nil {
		return err
	}
	var report struct {
		Checked int `json:"checked"`
		Drifts  []struct {
			PromotionID string `json:"promotionId"`
		} `json:"drifts"`
	}
	if err := json.Unmarshal([]byte(answer), &report); err != nil {
		return fmt.Errorf("%w: %s", err, answer)
	}
	for _, d := range report.Drifts {
		if d.PromotionID != unknownPromotion {
			return fmt.Errorf("the books of promotion %s do not balance: %s", d.PromotionID, answer)
		}
	}
	if report.Checked == 0 {
		return fmt.Errorf("the reconciliation compared no promotion: %s", answer)
	}
	return nil
}

// announce starts promotions through Kafka and publishes an unreadable record.
// It announces more targets than exist, so the promotions stay RUNNING.
func (in *instance) announce(ctx context.Context, promotions ...int) error {
	kafka, err := in.publisher()
	if err != nil {
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	defer kafka.Close()
	for _, id := range promotions {
		if err := publish(ctx, kafka, "campaign-promotion-started", fmt.Sprintf(`{"promotionId":%d,"promotionType":"POINT","totalCount":100000}`, id)); err != nil {
			return err
		}
	}
	return publish(ctx, kafka, "campaign-promotion-point-publish", "unreadable")
}

// publisher returns a client of the instance's broker.
func (in *instance) publisher() (*kgo.Client, error) {
	login := scram.Auth{User: kafkaUser, Pass: kafkaPassword}
	return kgo.NewClient(kgo.SeedBrokers(in.kafka), kgo.SASL(login.AsSha256Mechanism()))
}

func publish(ctx context.Context, kafka *kgo.Client, topic, value string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := kafka.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	return nil
}

// keepPublishing publishes unreadable records until stop is called, so that there
// is always an open dead letter.
func (in *instance) keepPublishing(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() {
		kafka, err := in.publisher()
		if err != nil {
			failed <- err
			return
		}
		defer kafka.Close()
		for n := 0; err == nil && ctx.Err() == nil; n++ {
			err = publish(ctx, kafka, "campaign-promotion-point-publish", "unreadable "+strconv.Itoa(n)+" \xff")
			select {
			case <-time.After(recordInterval):
			case <-ctx.Done():
				err = nil // the stop cut the call
			}
		}
		failed <- err
	}()
	return func() error {
		cancel()
		return <-failed
	}
}
