package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/largesse/largesse/internal/api"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/config/configtest"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestLookAtCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now()
	const day = 24 * time.Hour
	read := func(path string) string {
		t.Helper()
		text := fixture.Must(os.ReadFile(path))(t)
		return string(text)
	}
	lasts, key := configtest.IssueCert(t, dir, "lasts", now.Add(90*day))
	soon, _ := configtest.IssueCert(t, dir, "soon", now.Add(10*day))
	over, _ := configtest.IssueCert(t, dir, "over", now.Add(-time.Hour))
	early, _ := configtest.IssueCert(t, dir, "early", now.Add(366*day+time.Hour))
	chain := configtest.PutFile(t, filepath.Join(dir, "chain.crt"), read(lasts)+read(soon))
	list := configtest.PutFile(t, filepath.Join(dir, "list.crt"), read(over)+read(lasts)+read(soon))
	for name, tc := range map[string]struct {
		change func(c *config.Config)
		status CheckStatus // "" = no check
		found  string
	}{
		"None":           {func(*config.Config) {}, "", ""},
		"Lasts":          {func(c *config.Config) { c.HTTP.TLSCert = lasts }, CheckOK, "http.tls-cert is valid until " + now.Add(90*day).UTC().Format(time.DateOnly)},
		"Soon":           {func(c *config.Config) { c.HTTP.TLSCert = soon }, CheckWarn, "http.tls-cert expires on "},
		"Over":           {func(c *config.Config) { c.Kafka.ClientCert = over }, CheckFail, "kafka.client-cert expired on "},
		"Early":          {func(c *config.Config) { c.Money.ClientCert = early }, CheckFail, "money.client-cert is not valid before "},
		"AllOfAChain":    {func(c *config.Config) { c.HTTP.TLSCert = chain }, CheckWarn, "http.tls-cert expires on "},
		"AnyOfAList":     {func(c *config.Config) { c.Kafka.CAFile = list }, CheckOK, "kafka.ca-file is valid until "},
		"ListWithNone":   {func(c *config.Config) { c.Money.CAFile = over }, CheckFail, "money.ca-file expired on "},
		"OfRedis":        {func(c *config.Config) { c.Redis.CAFile = over }, CheckFail, "redis.ca-file expired on "},
		"NoCertificate":  {func(c *config.Config) { c.Money.CAFile = key }, "", ""},
		"NoFile":         {func(c *config.Config) { c.Money.CAFile = filepath.Join(dir, "none") }, "", ""},
		"TwoInOneLine":   {func(c *config.Config) { c.HTTP.TLSCert, c.Kafka.CAFile = lasts, lasts }, CheckOK, ", kafka.ca-file is valid until "},
		"FaultsAreAlone": {func(c *config.Config) { c.HTTP.TLSCert, c.Kafka.CAFile = soon, lasts }, CheckWarn, "http.tls-cert expires on "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config.Default()
			tc.change(&cfg)
			checks := lookAtCertificates(cfg, now)
			if tc.status == "" {
				if len(checks) > 0 {
					t.Errorf("%+v", checks)
				}
				return
			}
			if tc.status == CheckOK {
				onlyBut(t, checks, CheckOK)
			} else {
				onlyBut(t, checks, tc.status, "files.certificates")
			}
			if len(checks) == 0 || !strings.Contains(checks[0].Found, tc.found) {
				t.Errorf("%+v, want %q", checks, tc.found)
			}
		})
	}
}

func TestLookAtSecrets(t *testing.T) {
	t.Parallel()
	load := func(t *testing.T, text string, mode os.FileMode) (config.Config, string) {
		t.Helper()
		path := configtest.PutFile(t, filepath.Join(t.TempDir(), "largesse.yaml"), text)
		fixture.OK(t, os.Chmod(path, mode))
		c, _, problems, err := config.Examine(config.LoadParams{File: path})
		if err != nil || len(problems) > 0 {
			t.Fatal(err, problems)
		}
		return c, path
	}
	const secret = "database:\n  url: postgres://u:hunter2@h/db\nredis:\n  url: redis://h:6379\n"

	t.Run("InTheSettingsFile", func(t *testing.T) {
		t.Parallel()
		for mode, want := range map[os.FileMode]CheckStatus{0o600: CheckOK, 0o640: CheckOK, 0o644: CheckWarn, 0o604: CheckWarn} {
			cfg, path := load(t, secret, mode)
			checks := lookAtSecrets(cfg, path)
			if v := verdict(t, checks, "files.secrets"); v != want || !strings.Contains(checks[0].Found, "database.url") ||
				strings.Contains(checks[0].Found, "redis.url") || strings.Contains(checks[0].Found, "hunter2") {
				t.Errorf("%o: %+v, want %s", mode, checks, want)
			}
		}
		cfg, path := load(t, "database:\n  url: postgres://u@h/db\n", 0o644)
		if checks := lookAtSecrets(cfg, path); len(checks) > 0 {
			t.Errorf("without a secret: %+v", checks)
		}
		password := configtest.PutFile(t, filepath.Join(t.TempDir(), "password"), "hunter2")
		cfg, path = load(t, "redis:\n  url: rediss://u@h:6379\n  password-file: "+password+"\n", 0o644)
		for _, c := range lookAtSecrets(cfg, path) {
			if strings.Contains(c.Found, "redis.url") {
				t.Errorf("a user without a password: %+v", c)
			}
		}
		cfg, path = load(t, "redis:\n  url: redis://hunter2@h:6379\n", 0o644)
		onlyBut(t, lookAtSecrets(cfg, path), CheckWarn, "files.secrets")
	})

	t.Run("InFilesOfTheirOwn", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		cfg := config.Default()
		cfg.Money.TokenFile = configtest.PutFile(t, filepath.Join(dir, "token"), "x")
		cfg.Kafka.SASLPasswordFile = configtest.PutFile(t, filepath.Join(dir, "password"), "x")
		cfg.HTTP.TLSKey = filepath.Join(dir, "none")
		onlyBut(t, lookAtSecrets(cfg, ""), CheckOK)
		fixture.OK(t, os.Chmod(cfg.Kafka.SASLPasswordFile, 0o644))
		checks := lookAtSecrets(cfg, "")
		onlyBut(t, checks, CheckWarn, "files.secrets")
		if !strings.Contains(checks[0].Found, cfg.Kafka.SASLPasswordFile+" (kafka.sasl-password-file)") || strings.Contains(checks[0].Found, "token") {
			t.Errorf("%+v", checks)
		}
	})
}

func TestJudgeOpenFiles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		flags map[string]string
		files int
		want  CheckStatus
	}{
		{nil, 1 << 20, CheckOK},
		{nil, 20_000, CheckOK}, // the setting has its default
		{nil, 1024, CheckWarn},
		{map[string]string{"http.max-connections": "20000"}, 20_000, CheckWarn},
		{map[string]string{"http.max-connections": "500"}, 20_000, CheckOK},
	} {
		cfg, _, err := config.Load(config.LoadParams{Flags: tc.flags})
		if err != nil {
			t.Fatal(err)
		}
		if c := judgeOpenFiles(cfg, tc.files); c.Status != tc.want {
			t.Errorf("%v with %d files: %+v, want %s", tc.flags, tc.files, c, tc.want)
		}
	}
}

// TestLookAtHTTPSIsTheSame knows an instance that speaks TLS from another
// program.
func TestLookAtHTTPSIsTheSame(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(api.New(api.Config{Promotions: campaign.NewPromotions(campaign.PromotionsConfig{}), Version: "v7.0.0"}))
	defer server.Close()
	cfg := config.Default()
	cfg.HTTP.Listen, cfg.HTTP.TLSCert = server.Listener.Addr().String(), "tls.crt"
	if c := lookAtHTTP(t.Context(), cfg); len(c) != 1 || c[0].Status != CheckOK || !strings.Contains(c[0].Found, "version 7.0.0") {
		t.Errorf("%+v", c)
	}
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	cfg.HTTP.Listen = other.Listener.Addr().String()
	onlyBut(t, lookAtHTTP(t.Context(), cfg), CheckWarn, "http")
}

// TestLookAtKafkaSecurity has brokers that are reached in the wrong way.
func TestLookAtKafkaSecurity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := configtest.IssueCert(t, dir, "broker", time.Now().Add(time.Hour))
	other, _ := configtest.IssueCert(t, dir, "other", time.Now().Add(time.Hour))
	pair := fixture.Must(tls.LoadX509KeyPair(cert, key))(t)
	start := func(opts ...kfake.Opt) []string {
		t.Helper()
		cluster := fixture.Must(kfake.NewCluster(append(opts, kfake.NumBrokers(1))...))(t)
		t.Cleanup(cluster.Close)
		return cluster.ListenAddrs()
	}
	listen := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	mutual := listen.Clone()
	mutual.ClientAuth, mutual.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	users := []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "largesse", "secret"), kfake.Superuser("PLAIN", "boss", "boss")}
	secure := start(append(users, kfake.TLS(listen))...)
	plain, login, choosy := start(), start(users...), start(kfake.TLS(mutual))
	good := config.Kafka{
		TLS: true, CAFile: cert, SASLMechanism: "SCRAM-SHA-256", SASLUser: "largesse",
		SASLPasswordFile: configtest.PutFile(t, filepath.Join(dir, "password"), "secret\n"),
	}
	for name, tc := range map[string]struct {
		brokers []string
		change  func(c *config.Kafka)
		advice  string // "" = it is reached
	}{
		"Well":           {secure, func(*config.Kafka) {}, ""},
		"OtherAuthority": {secure, func(c *config.Kafka) { c.CAFile = other }, "to kafka.ca-file"},
		"OurCertificate": {choosy, func(c *config.Kafka) { c.SASLMechanism = "" }, "correct kafka.client-cert and kafka.client-key"},
		"WrongPassword": {secure, func(c *config.Kafka) {
			c.SASLPasswordFile = configtest.PutFile(t, filepath.Join(dir, "wrong"), "guess\n")
		}, "correct kafka.sasl-user and kafka.sasl-password-file"},
		"NoLogin":     {login, func(c *config.Kafka) { *c = config.Kafka{} }, "kafka.sasl-mechanism match"},
		"NoTLSThere":  {plain, func(c *config.Kafka) { c.SASLMechanism = "" }, "kafka.tls and kafka.sasl-mechanism match"},
		"NoTLSHere":   {secure, func(c *config.Kafka) { *c = config.Kafka{} }, "kafka.tls and kafka.sasl-mechanism match"},
		"NobodyThere": {[]string{"127.0.0.1:1"}, func(*config.Kafka) {}, "check that Kafka runs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config.Default()
			cfg.Kafka = good
			tc.change(&cfg.Kafka)
			cfg.Kafka.Brokers = tc.brokers
			checks := lookAtKafka(t.Context(), cfg)
			if tc.advice == "" {
				onlyBut(t, checks, CheckWarn, "kafka.topics")
				return
			}
			onlyBut(t, checks, CheckFail, "kafka")
			if !strings.Contains(checks[0].Advice, tc.advice) || strings.Contains(checks[0].Found+checks[0].Advice, "guess") {
				t.Errorf("%+v, want %q", checks[0], tc.advice)
			}
		})
	}
}

// A server of an unknown authority has its own advice: the server runs, and the URL may be right.
func TestLookAtUnknownAuthority(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := configtest.IssueCert(t, dir, "server", time.Now().Add(time.Hour))
	pair := fixture.Must(tls.LoadX509KeyPair(cert, key))(t)
	// start starts a server that speaks TLS after the preamble: PostgreSQL's answer to a
	// request for it.
	start := func(asked int, preamble string) string {
		t.Helper()
		server := fixture.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
		t.Cleanup(func() { _ = server.Close() })
		go func() {
			for {
				conn, err := server.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = conn.Close() }()
					if _, err := io.ReadFull(conn, make([]byte, asked)); err != nil {
						return
					}
					if _, err := io.WriteString(conn, preamble); err != nil {
						return
					}
					_ = tls.Server(conn, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}).Handshake()
				}()
			}
		}()
		return server.Addr().String()
	}
	cfg := config.Default()
	cfg.Redis.URL = "rediss://" + start(0, "")
	cfg.Database.URL = "postgres://u:p@" + start(8, "S") + "/x?sslmode=verify-full"
	for name, tc := range map[string]struct {
		checks []Check
		advice string
	}{
		"redis":    {lookAtRedis(t.Context(), cfg), "redis.ca-file"},
		"database": {lookAtDatabase(t.Context(), cfg, "v1"), "sslrootcert"},
	} {
		onlyBut(t, tc.checks, CheckFail, name)
		if len(tc.checks) == 0 || !strings.Contains(tc.checks[0].Advice, tc.advice) {
			t.Errorf("%s: %+v, want advice with %s", name, tc.checks, tc.advice)
		}
	}
	cfg.Redis.CAFile = cert
	if c := lookAtRedis(t.Context(), cfg)[0]; strings.Contains(c.Advice, "ca-file") {
		t.Errorf("with the right CA: %+v", c)
	}
}
