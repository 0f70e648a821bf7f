package largesse_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// sample is a provider of examples/, which a test starts, kills and starts again.
type sample struct {
	t       *testing.T
	command []string // without the flags
	file    string
	listen  string
	url     string
	cmd     *exec.Cmd
	log     lockedBuffer
}

// sampleToken is the token that the samples ask for.
const sampleToken = "right"

// samplePorts counts the ports that newSample has tried.
var samplePorts atomic.Int64

// samples are the providers of examples/.
func samples(t *testing.T) map[string][]string {
	t.Helper()
	return map[string][]string{
		"Go":     {buildExample(t, "provider-go")},
		"Python": {"python3", "examples/provider-python/provider.py"},
		"Node":   {"node", "examples/provider-node/provider.js"},
	}
}

// newSample starts a sample with an empty file. Its port is below those of
// outgoing connections, one of which could take it while the sample is down.
func newSample(t *testing.T, command []string) *sample {
	t.Helper()
	s := &sample{t: t, command: command, file: filepath.Join(t.TempDir(), "charges")}
	for s.listen == "" {
		port := 16384 + (int64(os.Getpid())*16+samplePorts.Add(1))%16384
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			s.listen = l.Addr().String()
			_ = l.Close()
		}
	}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	s.start()
	return s
}

func (s *sample) start() {
	s.t.Helper()
	s.cmd = exec.CommandContext(s.t.Context(), s.command[0], append(s.command[1:], "--listen", s.listen, "--file", s.file)...)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd.Stderr = &s.log
	s.cmd.Env = append(os.Environ(), "PROVIDER_TOKEN="+sampleToken)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if s.url = strings.TrimSpace(line); err != nil {
		s.t.Fatalf("it did not start: %v", err)
	}
}

// kill ends it as a loss of power of its process would.
func (s *sample) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// charges reads its list, in small pages.
func (s *sample) charges(promotion string) map[string]string {
	s.t.Helper()
	all := map[string]string{} // transaction keys by idempotency key
	for cursor := ""; ; {
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/v1/charges?limit=70&promotionId="+promotion+"&cursor="+cursor, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+sampleToken)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			s.t.Fatal(err)
		}
		var page struct {
			Charges    []struct{ IdempotencyKey, TransactionKey string }
			NextCursor string
		}
		err = json.NewDecoder(res.Body).Decode(&page)
		_ = res.Body.Close()
		if err != nil {
			s.t.Fatal(err)
		}
		for _, c := range page.Charges {
			if all[c.IdempotencyKey] != "" {
				s.t.Errorf("%s is listed twice", c.IdempotencyKey)
			}
			all[c.IdempotencyKey] = c.TransactionKey
		}
		if cursor = page.NextCursor; cursor == "" {
			return all
		}
	}
}

// check lets largesse provider check judge the sample.
func (s *sample) check() {
	s.t.Helper()
	cfg := config.Default()
	cfg.Money.URL = s.url
	cfg.Money.TokenFile = filepath.Join(s.t.TempDir(), "token")
	if err := os.WriteFile(cfg.Money.TokenFile, []byte(sampleToken), 0o600); err != nil {
		s.t.Fatal(err)
	}
	checks, err := engine.CheckProvider(s.t.Context(), cfg, engine.ProviderCheckParams{User: "u7", RefuseUser: "closed-7", VoucherCode: "V"})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range checks {
		if c.Status == engine.CheckFail || c.Status == engine.CheckWarn && c.Name != "latency" {
			s.t.Errorf("%+v", c)
		}
	}
}

// TestExampleProviders pays through each of the sample providers, which is killed
// in the middle and started again.
func TestExampleProviders(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds programs and runs them")
	}
	for name, command := range samples(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSample(t, command)
			r := newRig(t, embedded, moneysim.Faults{}, func(cfg *config.Config) {
				cfg.Money.URL, cfg.Money.AuthHeader = s.url, "Authorization: Bearer "+sampleToken
				cfg.Reconcile.Interval = time.Second
			})
			const paid, closed = 600, 20
			p, err := r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: name, Type: "POINT", Amount: 25})
			if err != nil {
				t.Fatal(err)
			}
			var file strings.Builder
			file.WriteString("targetId,userId\n")
			for i := range paid + closed {
				if i < closed {
					fmt.Fprintf(&file, "%d,closed-%d\n", i, i)
				} else {
					fmt.Fprintf(&file, "%d,\"user \"\"%d\"\" ✓\"\n", i, i)
				}
			}
			if _, err := r.api.UploadTargets(t.Context(), p.ID, strings.NewReader(file.String()), client.UploadOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := r.api.StartPromotion(t.Context(), p.ID); err != nil {
				t.Fatal(err)
			}
			r.until(p.ID, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 20 })
			s.kill()
			s.start()
			done := r.until(p.ID, "settled", settled)
			if done.Counts.Succeeded != paid || done.Counts.Failed != closed {
				t.Errorf("counts %+v", done.Counts)
			}
			s.check()
			listed := s.charges(p.ID)
			if len(listed) != paid {
				t.Errorf("%d charges for %d paid", len(listed), paid)
			}
			for row, err := range r.api.Payouts(t.Context(), p.ID, client.PayoutFilter{}) {
				if err != nil {
					t.Fatal(err)
				}
				if key := p.ID + ":" + row.TargetID; row.TransactionKey != listed[key] {
					t.Errorf("%s: the row has %q, the provider %q", key, row.TransactionKey, listed[key])
				}
			}
		})
	}
}
