package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/config/configtest"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

// start starts an instance and stops it at the end of the test.
func start(t *testing.T, cfg config.Config, log obs.Log, options ...Option) *Engine {
	t.Helper()
	e := fixture.Must(New(cfg, log, options...))(t)
	fixture.OK(t, e.Start(t.Context()))
	t.Cleanup(e.Stop)
	return e
}

// publish publishes a target as another process would, and returns the error. The client
// would repeat a refused login until its time is over, so the broker is asked once before.
func publish(t *testing.T, e *Engine, login sasl.Mechanism) error {
	t.Helper()
	opts := []kgo.Opt{kgo.SeedBrokers(e.Brokers()...)}
	if login != nil {
		opts = append(opts, kgo.SASL(login))
	}
	client := fixture.Must(kgo.NewClient(opts...))(t)
	defer client.Close()
	if _, err := client.SeedBrokers()[0].Request(t.Context(), kmsg.NewPtrMetadataRequest()); err != nil {
		return err
	}
	record := &kgo.Record{Topic: bus.TopicPointPublish, Key: []byte("7"), Value: []byte(`{"promotionId":1,"promotionSummaryId":1,"targetId":7,"userId":"u7","amount":1000}`)}
	return client.ProduceSync(t.Context(), record).FirstErr()
}

// TestBrokerRefusesStrangers publishes payouts to the embedded broker without an API
// key, as any process of the machine could.
func TestBrokerRefusesStrangers(t *testing.T) {
	t.Parallel()
	scramLogin := func(user, password string) sasl.Mechanism {
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	}
	guesses := map[string]sasl.Mechanism{
		"nothing": nil, "admin": scramLogin("admin", "admin"), "largesse": scramLogin("largesse", ""), "wrong": scramLogin("publisher", "guess"),
		"plain": plain.Auth{User: "nobody"}.AsMechanism(),
	}
	settings := func(t *testing.T, mode string) config.Config {
		t.Helper()
		cfg := config.Default()
		cfg.Data.Dir, cfg.Money.URL, cfg.Auth.Mode = t.TempDir(), "http://127.0.0.1:9", mode
		return cfg
	}
	t.Run("WithoutALogin", func(t *testing.T) {
		t.Parallel()
		e := start(t, settings(t, auth.ModeAPIKey), obs.Log{}, WithoutListener())
		for name, guess := range guesses {
			if err := publish(t, e, guess); err == nil {
				t.Errorf("%s: published", name)
			}
		}
	})
	t.Run("WithALogin", func(t *testing.T) {
		t.Parallel()
		cfg := settings(t, auth.ModeAPIKey)
		cfg.Kafka.SASLMechanism, cfg.Kafka.SASLUser = "SCRAM-SHA-256", "publisher"
		cfg.Kafka.SASLPasswordFile = configtest.PutFile(t, filepath.Join(t.TempDir(), "password"), "secret\n")
		for _, password := range []string{"secret", "rotated"} {
			fixture.OK(t, os.WriteFile(cfg.Kafka.SASLPasswordFile, []byte(password+"\n"), 0o600))
			e := start(t, cfg, obs.Log{}, WithoutListener())
			if err := publish(t, e, scramLogin("publisher", password)); err != nil {
				t.Errorf("%s: %v", password, err)
			}
			for name, guess := range guesses {
				if err := publish(t, e, guess); err == nil {
					t.Errorf("%s: published", name)
				}
			}
			if password == "rotated" && publish(t, e, scramLogin("publisher", "secret")) == nil {
				t.Error("published with the password of the previous start")
			}
			e.Stop()
		}
	})
	t.Run("WithoutAuthentication", func(t *testing.T) {
		t.Parallel()
		if err := publish(t, start(t, settings(t, auth.ModeNone), obs.Log{}, WithoutListener()), nil); err != nil {
			t.Error(err)
		}
	})
}
