package bus_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config/configtest"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/service"
)

// files is a folder of certificates, keys and passwords.
type files struct {
	t   *testing.T
	dir string
}

func newFiles(t *testing.T) *files {
	t.Helper()
	f := &files{t: t, dir: t.TempDir()}
	configtest.IssueCert(t, f.dir, "ca", time.Now().Add(time.Hour))
	return f
}

func (f *files) path(name string) string { return filepath.Join(f.dir, name) }

func (f *files) write(name, text string) string { return configtest.PutFile(f.t, f.path(name), text) }

// issue writes name.crt and name.key, signed by the authority.
func (f *files) issue(name string) {
	f.t.Helper()
	configtest.IssueCertBy(f.t, f.dir, "ca", name, time.Now().Add(time.Hour))
}

// pair returns the certificate and key of a name.
func (f *files) pair(name string) []tls.Certificate {
	f.t.Helper()
	pair := fixture.Must(tls.LoadX509KeyPair(f.path(name+".crt"), f.path(name+".key")))(f.t)
	return []tls.Certificate{pair}
}

// authority returns the pool that has the authority.
func (f *files) authority() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(f.pair("ca")[0].Leaf)
	return pool
}

// client returns the files of a client that a broker of the authority trusts.
func (f *files) client() *service.TLSFiles {
	return &service.TLSFiles{Setting: "kafka", CA: f.path("ca.crt"), Cert: f.path("us.crt"), Key: f.path("us.key")}
}

// brokerTLS is what a broker of the authority listens with.
func (f *files) brokerTLS() *tls.Config {
	f.t.Helper()
	f.issue("broker")
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: f.pair("broker")}
}

func startCluster(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster := fixture.Must(kfake.NewCluster(append(opts, kfake.NumBrokers(1))...))(t)
	t.Cleanup(cluster.Close)
	return cluster
}

// connect opens a client and closes it with the test.
func connect(t *testing.T, cfg bus.Config) (*bus.Client, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	client, err := bus.Open(ctx, cfg)
	if err == nil {
		t.Cleanup(client.Close)
	}
	return client, err
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "largesse", "secret word"),
		kfake.Superuser("SCRAM-SHA-256", "largesse", "secret word"),
		kfake.Superuser("SCRAM-SHA-512", "largesse", "secret word"))
	f := newFiles(t)
	open := func(mechanism, text string) error {
		_, err := connect(t, bus.Config{Brokers: cluster.ListenAddrs(), SASL: &bus.SASL{
			Mechanism: mechanism, User: "largesse", PasswordFile: f.write("password", text),
		}})
		return err
	}
	for _, mechanism := range bus.SASLMechanisms {
		if err := open(mechanism, "secret word\n"); err != nil {
			t.Errorf("%s with the password: %v", mechanism, err)
		}
		if err := open(mechanism, "guess"); err == nil || strings.Contains(err.Error(), "guess") {
			t.Errorf("%s with a wrong password: %v", mechanism, err)
		}
	}
	for name, text := range map[string]string{"empty": "", "two lines": "secret word\nsecret word\n", "blank": "\r\n"} {
		if err := open("PLAIN", text); err == nil || !strings.Contains(err.Error(), "kafka.sasl-password-file must hold one line") || strings.Contains(err.Error(), "secret") {
			t.Errorf("a file that is %s: %v", name, err)
		}
	}
	if err := open("ROT13", "secret word"); err == nil {
		t.Error("an unknown mechanism was taken")
	}
	if _, err := connect(t, bus.Config{Brokers: cluster.ListenAddrs(), SASL: &bus.SASL{Mechanism: "PLAIN", User: "largesse", PasswordFile: f.path("none")}}); err == nil {
		t.Error("a file that is not there was taken")
	}
	if _, err := connect(t, bus.Config{Brokers: cluster.ListenAddrs(), SASL: nil}); err == nil {
		t.Error("who shows nothing was let in")
	}
}

// TestTLSIsChecked has brokers that must not be trusted, and clients that must
// not be.
func TestTLSIsChecked(t *testing.T) {
	t.Parallel()
	f, strangers := newFiles(t), newFiles(t)
	f.issue("us")
	strangers.issue("us")
	want := f.brokerTLS()
	want.ClientAuth, want.ClientCAs = tls.RequireAndVerifyClientCert, f.authority()
	mutual, plainText := startCluster(t, kfake.TLS(want)), startCluster(t)
	ours := *f.client()
	for name, tc := range map[string]struct {
		cluster *kfake.Cluster
		change  func(c *service.TLSFiles)
		wrong   string // "" = let in
	}{
		"ours":                           {mutual, func(*service.TLSFiles) {}, ""},
		"without our certificate":        {mutual, func(c *service.TLSFiles) { c.Cert, c.Key = "", "" }, "certificate required"},
		"with a certificate of others":   {mutual, func(c *service.TLSFiles) { c.Cert, c.Key = strangers.path("us.crt"), strangers.path("us.key") }, "tls"},
		"without the broker's authority": {mutual, func(c *service.TLSFiles) { c.CA = "" }, "unknown authority"},
		"a broker of another authority":  {mutual, func(c *service.TLSFiles) { c.CA = strangers.path("ca.crt") }, "unknown authority"},
		"a broker without TLS":           {plainText, func(*service.TLSFiles) {}, "no Kafka broker"},
		"a file that is no certificate":  {mutual, func(c *service.TLSFiles) { c.CA = f.path("us.key") }, "kafka.ca-file holds no PEM certificate"},
		"no such file":                   {mutual, func(c *service.TLSFiles) { c.CA = f.path("none") }, "kafka.ca-file cannot be read"},
		"a key of another certificate":   {mutual, func(c *service.TLSFiles) { c.Key = f.path("ca.key") }, "kafka.client-cert cannot be used with kafka.client-key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := ours
			tc.change(&files)
			_, err := connect(t, bus.Config{Brokers: tc.cluster.ListenAddrs(), TLS: &files})
			if (err == nil) != (tc.wrong == "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("error %v, want %q", err, tc.wrong)
			}
		})
	}
}

// TestFilesAreReadForEachConnection rotates the password, our certificate and
// the authority's while a client is open.
func TestFilesAreReadForEachConnection(t *testing.T) {
	t.Parallel()
	f := newFiles(t)
	f.issue("us")
	var shown atomic.Value // the common name of the last client certificate
	want := f.brokerTLS()
	want.ClientAuth, want.ClientCAs = tls.RequireAndVerifyClientCert, f.authority()
	want.VerifyConnection = func(s tls.ConnectionState) error {
		shown.Store(s.PeerCertificates[0].Subject.CommonName)
		return nil
	}
	cluster := startCluster(t, kfake.TLS(want), kfake.EnableSASL(),
		kfake.Superuser("SCRAM-SHA-256", "largesse", "first"), kfake.Superuser("PLAIN", "boss", "boss"))
	password := f.write("password", "first\n")
	client := fixture.Must(connect(t, bus.Config{
		Brokers: cluster.ListenAddrs(), TLS: f.client(),
		SASL: &bus.SASL{Mechanism: "SCRAM-SHA-256", User: "largesse", PasswordFile: password},
	}))(t)
	fixture.OK(t, client.EnsureTopics(t.Context()))
	// A listener makes connections of its own.
	handled := func(group string) error {
		done := make(chan struct{}, 100)
		l := listen(t, client, group, func([]bus.Record) { done <- struct{}{} })
		defer l.Stop()
		select {
		case <-done:
			return nil
		case <-time.After(fixture.Patience):
			return context.DeadlineExceeded
		}
	}
	publish(t, client, numbered(0, 1))
	if err := handled("before"); err != nil || shown.Load() != "us" {
		t.Fatalf("before a rotation: %v, shown %v", err, shown.Load())
	}

	boss := fixture.Must(kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.SASL(plain.Auth{User: "boss", Pass: "boss"}.AsMechanism()),
		kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: f.authority(), Certificates: f.pair("us")}), kgo.DisableClientMetrics()))(t)
	defer boss.Close()
	altered := fixture.Must(kadm.NewClient(boss).AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{{
		User: "largesse", Mechanism: kadm.ScramSha256, Iterations: 4096, Password: "second",
	}}))(t)
	fixture.OK(t, altered.Error())
	f.write("password", "second\n")
	f.issue("renewed")
	for _, kind := range []string{".crt", ".key"} {
		fixture.OK(t, os.Rename(f.path("renewed"+kind), f.path("us"+kind)))
	}
	if err := handled("after"); err != nil || shown.Load() != "renewed" {
		t.Errorf("after a rotation: %v, shown %v", err, shown.Load())
	}

	// In the middle of a rotation a file is empty, or does not fit its partner.
	f.issue("half")
	f.write("password", "")
	f.write("ca.crt", "")
	fixture.OK(t, os.Rename(f.path("half.crt"), f.path("us.crt")))
	if err := handled("meanwhile"); err != nil || shown.Load() != "renewed" {
		t.Errorf("in the middle of a rotation: %v, shown %v", err, shown.Load())
	}
}
