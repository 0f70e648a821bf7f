//go:build ci

package test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/doctor"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// sample is a provider of examples/, which a test starts, kills and starts again.
type sample struct {
	t       *testing.T
	command []string
	dir     string // has the file of its charges
	address string
	url     string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd has ended
	log     fixture.Buffer
}

// samples are the providers of examples/.
func samples(t *testing.T) map[string][]string {
	t.Helper()
	python := fixture.Must(filepath.Abs("examples/provider-python/provider.py"))(t)
	node := fixture.Must(filepath.Abs("examples/provider-node/provider.js"))(t)
	return map[string][]string{
		"Go":     {buildExample(t, "provider-go")},
		"Python": {"python3", python},
		"Node":   {"node", node},
	}
}

// newSample starts a sample in an empty folder.
func newSample(t *testing.T, command []string) *sample {
	t.Helper()
	s := &sample{t: t, command: command, dir: t.TempDir(), address: fixture.FreeAddress(t)}
	s.url = "http://" + s.address
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	s.start()
	return s
}

// start returns when the sample listens.
func (s *sample) start() {
	s.t.Helper()
	cmd, ended := exec.CommandContext(s.t.Context(), s.command[0], s.command[1:]...), make(chan struct{})
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	cmd.Env = append(os.Environ(), "PORT="+strings.TrimPrefix(s.address, "127.0.0.1:"))
	fixture.OK(s.t, cmd.Start())
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	s.cmd, s.ended = cmd, ended
	fixture.Until(s.t, "the provider listens", func() bool {
		select {
		case <-ended:
			s.t.Fatal("it ended")
		default:
		}
		conn, err := new(net.Dialer).DialContext(s.t.Context(), "tcp", s.address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// kill ends it as a loss of power of its process would.
func (s *sample) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.ended
		s.cmd = nil
	}
}

// lines is the file of the samples that write one, and rows that of the others.
func (s *sample) lines() string { return filepath.Join(s.dir, "charges.jsonl") }
func (s *sample) rows() string  { return filepath.Join(s.dir, "charges.db") }

// tear leaves half a line at the end of the file, as a crash can.
func (s *sample) tear() {
	s.t.Helper()
	raw, err := os.ReadFile(s.lines())
	if errors.Is(err, fs.ErrNotExist) {
		return // SQLite has its own way to recover
	}
	last := raw[bytes.LastIndexByte(bytes.TrimSuffix(raw, []byte("\n")), '\n')+1:]
	if err == nil {
		err = os.WriteFile(s.lines(), append(raw, last[:len(last)/2]...), 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// charges counts the charges of a promotion that the sample has recorded.
func (s *sample) charges(promotion string) int {
	s.t.Helper()
	raw, err := os.ReadFile(s.lines())
	if err == nil {
		seen := map[string]bool{}
		for line := range strings.Lines(string(raw)) {
			if seen[line] {
				s.t.Errorf("charged twice: %s", line)
			}
			if strings.Contains(line, promotion) {
				seen[line] = true
			}
		}
		return len(seen)
	}
	db := fixture.Must(sql.Open("sqlite", s.rows()))(s.t)
	defer db.Close()
	var n int
	fixture.OK(s.t, db.QueryRowContext(s.t.Context(), "SELECT count(*) FROM charges WHERE key LIKE ? || ':%'", promotion).Scan(&n))
	return n
}

// found looks a key up, and returns its transaction key.
func (s *sample) found(key string) string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/v1/transactions/"+key, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var body struct{ TransactionKey string }
	fixture.OK(s.t, json.NewDecoder(res.Body).Decode(&body))
	return body.TransactionKey
}

// check lets largesse provider check judge the sample. It leaves out what is
// optional: credentials, and the list of its charges.
func (s *sample) check() {
	s.t.Helper()
	cfg := config.Default()
	cfg.Money.URL = s.url
	checks := fixture.Must(doctor.CheckProvider(s.t.Context(), cfg, doctor.ProviderCheckParams{User: "u7", RefuseUser: "closed-1", VoucherCode: "V"}))(s.t)
	optional := map[string]bool{"credentials": true, "list": true, "latency": true}
	for _, c := range checks {
		if c.Status == doctor.CheckFail || c.Status == doctor.CheckWarn && !optional[c.Name] {
			s.t.Errorf("%+v", c)
		}
	}
}

// TestExampleProviders pays through each of the sample providers, which is killed
// and started again twice in the middle.
func TestExampleProviders(t *testing.T) {
	t.Parallel()
	for name, command := range samples(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSample(t, command)
			r := newRig(t, embedded, moneysim.Faults{}, func(cfg *config.Config) {
				cfg.Money.URL = s.url
			})
			const paid, closed = 600, 20
			var file strings.Builder
			file.WriteString("targetId,userId\n")
			for i := range paid + closed {
				if i < closed {
					fmt.Fprintf(&file, "%d,closed-1\n", i)
				} else {
					fmt.Fprintf(&file, "%d,\"user \"\"%d\"\" ✓\"\n", i, i)
				}
			}
			id, _ := r.pay(client.NewPromotion{Name: name, Type: "POINT", Amount: 25}, strings.NewReader(file.String()))
			for _, paid := range []int64{20, 200} { // the second start reads what was written behind half a line
				r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > paid })
				s.kill()
				s.tear()
				s.start()
			}
			done := r.until(id, "settled", settled)
			if done.Counts.Succeeded != paid || done.Counts.Failed != closed {
				t.Errorf("counts %+v", done.Counts)
			}
			s.check()
			if n := s.charges(id); n != paid {
				t.Errorf("%d charges for %d paid", n, paid)
			}
			for row, err := range r.api.Payouts(t.Context(), id, client.PayoutFilter{}) {
				if err != nil {
					t.Fatal(err)
				}
				if found := s.found(id + ":" + row.TargetID); row.TransactionKey != found {
					t.Errorf("%s: the row has %q, the provider %q", row.TargetID, row.TransactionKey, found)
				}
			}
		})
	}
}
