package config

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

var ignoreSources = cmpopts.IgnoreUnexported(Config{})

func TestLoadConfig(t *testing.T) {
	t.Parallel()

	t.Run("WithoutAnythingGivesTheDefaults", func(t *testing.T) {
		t.Parallel()
		got, warnings, err := Load(LoadParams{})
		if err != nil || len(warnings) > 0 {
			t.Fatalf("Load: %v, warnings %v", err, warnings)
		}
		want := Config{
			Data:     Data{Dir: "./largesse-data"},
			Database: Database{MaxConnections: 20, ReadConnections: 5},
			Redis: Redis{Stream: Stream{
				Enabled: true, MaxLen: 100_000, PollIntervalMs: 100, IdleTimeoutSeconds: 30, BatchSize: 10,
				MinConsumerPerInstance: 1, MaxConsumerPerInstance: 32, InFlightPerConsumer: 64, LeaseSeconds: 15,
			}},
			Kafka: Kafka{Brokers: []string{}, EmbeddedListen: "127.0.0.1:0"},
			Money: Money{
				Timeout: 5 * time.Second, MaxConcurrency: 2048, MaxRetries: 5, SettleAfter: time.Minute,
				IdempotencyWindow: 24 * time.Hour, GiveUpAfter: 24 * time.Hour, RefusalCodes: []string{}, Currencies: []string{},
				Request: MoneyRequest{Method: "POST", Key: `promotionId + ":" + targetId`, SignatureEncoding: "hex"},
				Response: MoneyResponse{
					Misconfigured: "status in [301, 302, 303, 307, 308, 401, 403, 404, 405, 407, 413, 415]", Throttled: "status == 429",
				},
			},
			Approval: Approval{Currencies: []string{}},
			Coupon: Coupon{
				ConsumerConcurrency: 10, LockWait: 2 * time.Second, LockLease: 5 * time.Second, AvailabilityTTL: 30 * time.Second, LapsedHolds: 1,
				FallbackAfter: 3 * time.Second, QueueTTL: 24 * time.Hour,
			},
			HTTP:      HTTP{Listen: "127.0.0.1:8080", MaxConnections: 20_000, MaxHeldAnswers: 16_000, RateLimitPerUser: 20, AllowedOrigins: []string{}, TrustedProxies: []string{}},
			Console:   Console{Languages: Languages},
			Reconcile: Reconcile{Interval: time.Minute},
			Auth:      Auth{Mode: "none", JWT: JWT{UserClaim: "sub", RoleClaim: "role"}},
			Log:       Log{Level: "info", Format: "text"},
			Otel:      Otel{SampleOneIn: 100},
			Roles:     Roles,
		}
		fixture.Equal(t, want, got, ignoreSources)
		fixture.Equal(t, want, Default(), ignoreSources)
	})

	t.Run("LetsFlagsWinOverTheEnvironmentAndThatOverTheFile", func(t *testing.T) {
		t.Parallel()
		file := writeFile(t, "redis:\n  stream:\n    max-len: 1\n    batch-size: 2\n    lease-seconds: 60\nmoney:\n  timeout: 7s\n")
		got, warnings, err := Load(LoadParams{
			File:    file,
			Environ: []string{"LARGESSE_REDIS_STREAM_MAX_LEN=10", "LARGESSE_REDIS_STREAM_BATCH_SIZE=20", "PATH=/bin"},
			Flags:   map[string]string{"redis.stream.max-len": "100"},
		})
		if err != nil || len(warnings) > 0 {
			t.Fatalf("Load: %v, warnings %v", err, warnings)
		}
		s := got.Redis.Stream
		if s.MaxLen != 100 || s.BatchSize != 20 || s.LeaseSeconds != 60 || got.Money.Timeout != 7*time.Second {
			t.Errorf("max-len %d, batch-size %d, lease %d, timeout %s", s.MaxLen, s.BatchSize, s.LeaseSeconds, got.Money.Timeout)
		}
		if s.Lease() != time.Minute || s.PollInterval() != 100*time.Millisecond || s.IdleTimeout() != 30*time.Second {
			t.Errorf("lease %s, poll interval %s, idle timeout %s", s.Lease(), s.PollInterval(), s.IdleTimeout())
		}
		sources := map[string]string{}
		for _, v := range got.Values() {
			sources[v.Name] = v.Source
		}
		want := map[string]string{
			"redis.stream.max-len":       "flag --redis-stream-max-len",
			"redis.stream.batch-size":    "environment LARGESSE_REDIS_STREAM_BATCH_SIZE",
			"redis.stream.lease-seconds": "file " + file + " line 5",
			"data.dir":                   "default",
		}
		for name, source := range want {
			if sources[name] != source {
				t.Errorf("%s comes from %q, want %q", name, sources[name], source)
			}
		}
	})

	t.Run("TakesWhatAProgramGives", func(t *testing.T) {
		t.Parallel()
		got, warnings, err := Load(LoadParams{
			Environ: []string{"LARGESSE_DATA_DIR=from-environment"},
			Flags:   map[string]string{"data.dir": "from-flag"},
			Program: map[string]Value{"data.dir": {"here", "Config.DataDir"}, "roles": {"api, payout", "Config.Settings"}},
		})
		if err != nil || len(warnings) > 0 {
			t.Fatalf("Load: %v, warnings %v", err, warnings)
		}
		if got.Data.Dir != "here" || !slices.Equal(got.Roles, []string{"api", "payout"}) || got.Source("data.dir") != "Config.DataDir" {
			t.Errorf("data.dir %s (%s), roles %q", got.Data.Dir, got.Source("data.dir"), got.Roles)
		}
		_, _, err = Load(LoadParams{Program: map[string]Value{
			"data.dirr": {"here", "Config.Settings"}, "money.timeout": {"soon", "Config.Settings"}, "roles": {"king", "Config.Settings"},
		}})
		want := `settings: data.dirr (Config.Settings) is not a setting; did you mean data.dir?; ` +
			`money.timeout = "soon" (Config.Settings) must be a duration with a unit such as 500ms, 5s or 24h; ` +
			`roles = "king" (Config.Settings) has the unknown role "king"; the roles are api, ingest, payout, issuer, housekeeping`
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	})

	t.Run("WarnsOfUnknownVariablesOnly", func(t *testing.T) {
		t.Parallel()
		_, warnings, err := Load(LoadParams{Environ: []string{
			"LARGESSE_SERVICE_HOST=10.0.0.1", "LARGESSE_MONEY_TIMEOT=1s", "LARGESSE_SERVER=http://x", "LARGESSE_API_KEY=k",
			"LARGESSE_TEST_REDIS=redis://x", "LARGESSE_DATABASE_MAX_CONNECTIONS=", "LARGESSE_FOO=1",
		}})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"environment variable LARGESSE_FOO is not a setting; the settings are listed in docs/settings.md",
			"environment variable LARGESSE_MONEY_TIMEOT is not a setting; did you mean LARGESSE_MONEY_TIMEOUT?",
			"environment variable LARGESSE_SERVICE_HOST is not a setting; the settings are listed in docs/settings.md",
		}
		fixture.Equal(t, want, warnings)
	})

	t.Run("WarnsOfWhatIsSafeButHardlyMeant", func(t *testing.T) {
		t.Parallel()
		_, warnings, err := Load(LoadParams{Flags: map[string]string{"money.settle-after": "1s", "money.idempotency-window": "500ms"}})
		if err != nil {
			t.Fatal(err)
		}
		if len(warnings) != 2 || !strings.HasPrefix(warnings[0], "money.settle-after 1s is below money.timeout 5s") ||
			!strings.HasPrefix(warnings[1], "money.idempotency-window 500ms is not above money.settle-after 1s") {
			t.Errorf("warnings %q", warnings)
		}
	})

	t.Run("AnAddressForNoAPIIsAWarningWhenAFlagGivesIt", func(t *testing.T) {
		t.Parallel()
		const name = "http.listen"
		for _, tc := range []struct {
			roles string
			flags map[string]string
			env   []string
			want  int
		}{
			{"ingest,payout", map[string]string{name: "127.0.0.1:0"}, nil, 1},
			{"ingest,payout", nil, []string{"LARGESSE_HTTP_LISTEN=127.0.0.1:0"}, 0},
			{"ingest,payout", nil, nil, 0},
			{"api,payout", map[string]string{name: "127.0.0.1:0"}, nil, 0},
		} {
			flags := map[string]string{"roles": tc.roles}
			maps.Copy(flags, tc.flags)
			_, warnings, err := Load(LoadParams{Flags: flags, Environ: tc.env})
			if err != nil || len(warnings) != tc.want || tc.want > 0 && !strings.HasPrefix(warnings[0], "http.listen 127.0.0.1:0 has no effect") {
				t.Errorf("%+v: warnings %q, %v", tc, warnings, err)
			}
		}
	})

	t.Run("NamesAFileThatCannotBeRead", func(t *testing.T) {
		t.Parallel()
		_, _, err := Load(LoadParams{File: filepath.Join(t.TempDir(), "absent.yaml")})
		if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "absent.yaml") {
			t.Errorf("error %v", err)
		}
	})
}

func TestLoadConfigFile(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, yaml string
		check      func(Config) bool
		wrong      string // part of the error; FILE is the path
	}{
		{name: "Empty", yaml: "", check: func(c Config) bool { return c.Redis.Stream.MaxLen == 100_000 }},
		{name: "CommentsOnly", yaml: "# nothing\n", check: func(c Config) bool { return c.HTTP.Listen == "127.0.0.1:8080" }},
		{name: "EmptyGroup", yaml: "redis:\n  stream:\n#    max-len: 1\n", check: func(c Config) bool { return c.Redis.Stream.MaxLen == 100_000 }},
		{name: "NullValue", yaml: "redis:\n  url:\n", check: func(c Config) bool { return c.Redis.URL == "" }},
		{name: "DottedNames", yaml: "redis.stream.max-len: 7\nhttp: {listen: 'localhost:0'}\n", check: func(c Config) bool { return c.Redis.Stream.MaxLen == 7 && c.HTTP.Listen == "localhost:0" }},
		{name: "Lists", yaml: "kafka:\n  brokers: [a:1, b:2]\nroles: api, payout\n", check: func(c Config) bool { return len(c.Kafka.Brokers) == 2 && len(c.Roles) == 2 }},
		{name: "UnknownName", yaml: "redis:\n  stream:\n    max-length: 1\n", wrong: "redis.stream.max-length (file FILE line 3) is not a setting; did you mean redis.stream.max-len?"},
		{name: "UnknownGroup", yaml: "mony:\n  timeout: 1s\n", wrong: "mony (file FILE line 2) is not a setting; did you mean money?"},
		{name: "UnknownGroupAsADatabase", yaml: "databse: postgres://h/d\n", wrong: "databse (file FILE line 1) is not a setting; did you mean database.url?"},
		{name: "UnknownNameNearAGroup", yaml: "redis:\n  streem: 5\n", wrong: "redis.streem (file FILE line 2) is not a setting; did you mean redis.stream."},
		{name: "UnknownGroupInAGroup", yaml: "redis:\n  streem:\n    max-len: 5\n", wrong: "redis.streem (file FILE line 3) is not a setting; did you mean redis.stream?"},
		{name: "NameWithoutItsGroup", yaml: "listen: 127.0.0.1:1\n", wrong: "listen (file FILE line 1) is not a setting; did you mean http.listen?"},
		{name: "GroupWithoutItsGroup", yaml: "listen: {address: x}\n", wrong: "listen (file FILE line 1) is not a setting; did you mean http.listen?"},
		{name: "NameOfSeveral", yaml: "url: redis://h\n", wrong: "url (file FILE line 1) is not a setting; did you mean database.url or redis.url or money.url?"},
		{name: "NameWithoutItsInnerGroup", yaml: "redis: {max-len: 5}\n", wrong: "redis.max-len (file FILE line 1) is not a setting; did you mean redis.stream.max-len?"},
		{name: "PartOfAName", yaml: "money: {response: {transaction: x}}\n", wrong: "is not a setting; did you mean money.response.transaction-key?"},
		{name: "NoSuchNameInAGroup", yaml: "money:\n  response: {succeeded: x}\n", wrong: "money.response.succeeded (file FILE line 2) is not a setting; money.response has paid, transaction-key, refused, misconfigured, throttled, code, message"},
		{name: "ValueForAGroup", yaml: "redis: redis://h\n", wrong: "redis (file FILE line 1) must be a group of settings, not a single value"},
		{name: "GroupForAValue", yaml: "money:\n  timeout: {a: b}\n", wrong: "money.timeout (file FILE line 2) must be one plain value (duration)"},
		{name: "ListForAValue", yaml: "money:\n  timeout: [1s]\n", wrong: "money.timeout (file FILE line 2) must be one plain value"},
		{name: "NestedList", yaml: "roles: [[api]]\n", wrong: "roles (file FILE line 1) must be a list of plain values"},
		{name: "Twice", yaml: "money.timeout: 1s\nmoney:\n  timeout: 2s\n", wrong: "money.timeout (file FILE line 3) is set twice; keep one"},
		{name: "TwoDocuments", yaml: "roles: [api]\n---\nroles: [payout]\n", wrong: "more than one YAML document"},
		{name: "NotYAML", yaml: "{", wrong: "it is not YAML"},
		{name: "AListAtTheTop", yaml: "- a\n", wrong: "the document (file FILE line 1) must be a group of settings"},
		{name: "AnAlias", yaml: "money: {timeout: &x 1s, settle-after: *x}\n", wrong: "money.settle-after (file FILE line 1) must be one plain value"},
		{name: "NumberWithoutUnit", yaml: "money:\n  timeout: 5\n", wrong: `money.timeout = "5" (file FILE line 2) must be a duration with a unit`},
		{name: "TextForANumber", yaml: "redis:\n  stream: {max-len: many}\n", wrong: `redis.stream.max-len = "many" (file FILE line 2) must be a whole number`},
		{name: "YesForABool", yaml: "redis:\n  stream: {enabled: 1}\n", wrong: `redis.stream.enabled = "1" (file FILE line 2) must be true or false`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			file := writeFile(t, tc.yaml)
			c, _, err := Load(LoadParams{File: file})
			if tc.wrong == "" {
				if err != nil {
					t.Fatal(err)
				}
				if !tc.check(c) {
					t.Errorf("loaded %+v", c)
				}
				return
			}
			want := strings.ReplaceAll(tc.wrong, "FILE", file)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v\nwant   %s", err, want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, value, wrong string }{
		{"data.dir", " ", "must name a directory"},
		{"database.url", "postgres://u:p@h/db", ""},
		{"database.url", "postgresql:///db?host=/run/postgresql", ""},
		{"database.url", "mysql://h/db", "must start with postgres:// or postgresql://"},
		{"database.url", "postgres:///db", "must name a host"},
		{"database.url", "host=h dbname=d", "must start with postgres://"},
		{"database.max-connections", "1", "must be from 2 to 10000"},
		{"database.read-connections", "0", "must be from 1 to 1000"},
		{"database.read-connections", "1000", ""},
		{"redis.url", "redis://h:6379/0,rediss://i:6380", ""},
		{"redis.url", "redis://h,", "must start with redis:// or rediss://"},
		{"redis.url", "http://h", "must start with redis:// or rediss://"},
		{"redis.key-prefix", "prod:", ""},
		{"redis.key-prefix", "{a}", "must be at most 64 letters"},
		{"redis.stream.max-len", "0", "must be from 1 to"},
		{"redis.stream.max-len", "1", ""},
		{"redis.stream.poll-interval-ms", "0", "must be from 1 to 60000"},
		{"redis.stream.idle-timeout-seconds", "0", "must be from 1 to 86400"},
		{"redis.stream.batch-size", "1001", "must be from 1 to 1000"},
		{"redis.stream.min-consumer-per-instance", "33", "must not be above redis.stream.max-consumer-per-instance, which is 32"},
		{"redis.stream.min-consumer-per-instance", "0", "must be from 1 to 256"},
		{"redis.stream.max-consumer-per-instance", "257", "must be from 1 to 256"},
		{"redis.stream.max-consumer-per-instance", "256", ""},
		{"redis.stream.in-flight-per-consumer", "0", "must be from 1 to 10000"},
		{"redis.stream.lease-seconds", "5", "must be above money.timeout, which is 5s"},
		{"redis.stream.lease-seconds", "6", ""},
		{"redis.stream.lease-seconds", "0", "must be from 1 to 3600"},
		{"money.timeout", "15s", "must be above money.timeout, which is 15s"},
		{"kafka.brokers", "a:9092,b:9092", ""},
		{"kafka.brokers", "a", `has "a"; each broker must be host:port`},
		{"kafka.brokers", "a:0", `has "a:0"`},
		{"kafka.embedded-listen", "0.0.0.0:9092", "must be a loopback address (0.0.0.0 is not)"},
		{"kafka.topic-prefix", "a b", "must be at most 64 letters"},
		{"money.url", "https://pay.example/api", ""},
		{"money.url", "pay.example", "must start with http:// or https://"},
		{"money.url", "http://pay.example/?a=b", "must not contain a query (?) or a fragment (#)"},
		{"money.timeout", "1ms", "must be from 10ms to 10m"},
		{"money.timeout", "-1s", "must be from 10ms to 10m"},
		{"money.max-concurrency", "0", "must be from 1 to 100000"},
		{"money.max-retries", "0", ""},
		{"money.max-retries", "21", "must be from 0 to 20"},
		{"money.settle-after", "1ns", "must be at least 100ms"},
		{"money.idempotency-window", "0s", "must be at least 100ms"},
		{"money.give-up-after", "99ms", "must be at least 100ms"},
		{"money.refusal-codes", "NO_ACCOUNT,CLOSED", ""},
		{"money.refusal-codes", "NO ACCOUNT", `has "NO ACCOUNT"`},
		{"money.currencies", "EUR,XXX", ""},
		{"money.currencies", "EUR,eur", `has "eur"; a currency is three capital letters, e.g. EUR`},
		{"money.currencies", "EUR,JPY,EUR", "has EUR twice"},
		{"money.auth-header", "X-Api-Key: k1", ""},
		{"money.auth-header", "hunter2", `money.auth-header = "xxxxx" (flag --money-auth-header) must be of the form "Name: value", or "Name" with money.token-file`},
		{"money.auth-header", "Host: hunter2", `money.auth-header = "Host: xxxxx" (flag --money-auth-header) must not be Host`},
		{"money.token-file", "/run/token", ""}, // read at the start
		{"money.client-cert", "/run/c.pem", "must be set together with money.client-key"},
		{"money.client-key", "/run/k.pem", "must be set together with money.client-key, or not at all"},
		{"approval.above", "0", ""},
		{"approval.above", "100000", ""},
		{"approval.above", "-1", "must be at least 0"},
		{"approval.codes-above", "10000", ""},
		{"approval.codes-above", "-1", "must be from 0 to 1000000000"},
		{"approval.above-per-day", "-1", "must be at least 0"},
		{"approval.above-per-day", "1", "needs approval.above"},
		{"approval.currencies", "KRW:1", "needs approval.above, for the currencies that it does not have"},
		{"approval.currencies", "KRW", `has "KRW"; each must be CODE:ABOVE or CODE:ABOVE:PER-DAY`},
		{"approval.currencies", "EUR:1:2,KRV:1", `has "KRV:1"`},
		{"approval.currencies", "KRW:1:2:3", `has "KRW:1:2:3"`},
		{"approval.currencies", "EUR:1,KRW:1:0", `has "KRW:1:0"; its amounts must be whole numbers of minor units, at least 1`},
		{"approval.currencies", "EUR:1.50", `has "EUR:1.50"; its amounts`},
		{"approval.currencies", "EUR:1,EUR:2", "has EUR twice"},
		{"coupon.lock-wait", "0s", "must be from 1ms to 1m"},
		{"retention.audit", "59m", "must be at least 1h"},
		{"retention.audit", "1h", ""},
		{"webhook.secret", "0123456789abcdef", ""},
		{"webhook.secret", strings.Repeat("x", 1001), `webhook.secret = "xxxxx" (flag --webhook-secret) must have at most 1000 characters`},
		{"notify.slack-url", "https://hooks.example/services/T/B/x", ""},
		{"notify.slack-url", "hooks.example/hunter2", `notify.slack-url = "xxxxx" (flag --notify-slack-url) must be an absolute URL`},
		{"notify.smtp-url", "smtp://kim:p@mail.example:587", "needs notify.from, an e-mail address"},
		{"notify.smtp-url", "mail.example:587", "must be like smtp://user:password@mail.example:587"},
		{"notify.from", "rewards@shop.example", "has no effect without notify.smtp-url"},
		{"notify.smtp-password-file", "/run/password", "has no effect without notify.smtp-url"},
		{"notify.time-zone", "Asia/Seoul", ""},
		{"notify.time-zone", "Mars/Olympus", "must be a name of the time zone database, such as Asia/Seoul"},
		{"notify.console-url", "https://rewards.example/", ""},
		{"notify.console-url", "https://rewards.example/#/overview", "must not have a user, a query or a fragment"},
		{"http.listen", "127.0.0.1:0", ""},
		{"http.listen", "[::1]:8080", ""},
		{"http.listen", "loop.example:8080", ""},
		{"http.listen", "0.0.0.0:8080", "must be a loopback address (0.0.0.0 is not); use 127.0.0.1, because auth.mode none"},
		{"http.listen", "[::]:8080", "must be a loopback address (:: is not)"},
		{"http.listen", ":8080", "would accept connections from other machines"},
		{"http.listen", "mixed.example:8080", "must be a loopback address (192.0.2.7 is not)"},
		{"http.listen", "absent.example:8080", `has the host "absent.example", which cannot be resolved`},
		{"http.listen", "127.0.0.1", "must be host:port"},
		{"http.listen", "127.0.0.1:65536", "must be host:port"},
		{"http.listen", "127.0.0.1:http", "must be host:port"},
		{"auth.mode", "apikey", ""},
		{"auth.mode", "jwt", "auth.jwt.jwks (default) is missing, but auth.mode jwt needs the keys of the token issuer"},
		{"auth.mode", "open", "must be one of none, apikey, jwt"},
		{"auth.jwt.issuer", "https://id.example", "has no effect unless auth.mode is jwt"},
		{"http.rate-limit", "-1", "must be"},
		{"http.rate-limit-per-user", "1000001", "must be"},
		{"http.allowed-origins", "https://shop.example,http://127.0.0.1:3000", ""},
		{"http.allowed-origins", "shop.example", "each must be like https://shop.example"},
		{"console.languages", "ko", ""},
		{"console.languages", "de", `has "de"; the languages are en, ko`},
		{"console.languages", "en,en", "twice"},
		{"console.languages", "", "at least one"},
		{"shop.accent-color", "#1d55c7", ""},
		{"shop.accent-color", "red", "like #1d55c7"},
		{"shop.accent-color", "#ffcc00", "contrast of 1.5 to the white text"},
		{"shop.name", strings.Repeat("가", 101), "at most 100"},
		{"shop.footer", strings.Repeat("x", 501), "at most 500"},
		{"shop.logo-file", "logo.exe", "no image"},
		{"shop.logo-file", "missing.png", "missing.png"},
		{"log.level", "loud", "must be one of debug, info, warn, error"},
		{"log.format", "xml", "must be one of text, json"},
		{"roles", "api,payout", ""},
		{"roles", "", "must name at least one of api"},
		{"roles", "api,cook", `unknown role "cook"`},
		{"roles", "api,api", `names the role "api" twice`},
	} {
		t.Run(tc.name+"="+tc.value, func(t *testing.T) {
			t.Parallel()
			c, found := merge(readFlags(map[string]string{tc.name: tc.value}))
			if _, known := settingByName(tc.name); !known || len(found) > 0 {
				t.Fatal(known, found)
			}
			v := validation{config: c, resolve: resolveExamples}
			v.run()
			if tc.wrong == "" {
				if len(v.problems) > 0 {
					t.Errorf("refused: %v", v.problems)
				}
				return
			}
			if len(v.problems) == 0 {
				t.Fatal("accepted")
			}
			if got := v.problems[0].String(); !strings.Contains(got, tc.wrong) {
				t.Errorf("problem %q\nwant    %q", got, tc.wrong)
			}
		})
	}

	t.Run("LimitsOfCurrencies", func(t *testing.T) {
		t.Parallel()
		c, _, err := Load(LoadParams{Flags: map[string]string{
			"approval.above": "100", "approval.above-per-day": "300", "approval.currencies": "XXX:7, KRW:1000:5000",
		}})
		above, perDay, wrong := c.Approval.Limits()
		if err != nil || wrong != nil {
			t.Fatal(err, wrong)
		}
		want := [...]reward.Amount{7, 300, 7, 300, 1000, 5000, 100, 300}
		if got := [...]reward.Amount{
			above.Of(""), perDay.Of(""), above.Of("XXX"), perDay.Of("XXX"), above.Of("KRW"), perDay.Of("KRW"), above.Of("EUR"), perDay.Of("EUR"),
		}; got != want {
			t.Errorf("%v, not %v", got, want)
		}
		if got := c.Approval.String(); got != "approval.above: 100, approval.above-per-day: 300, approval.codes-above: 0, approval.currencies: KRW:1000:5000,XXX:7" {
			t.Error(got)
		}
	})

	t.Run("OneCurrencyOfARequestThatNamesNone", func(t *testing.T) {
		t.Parallel()
		flags := map[string]string{
			"money.url": "https://pay.example", "money.request.path": "/v2", "money.request.body": `{"value": amount}`, "money.response.paid": "status == 200",
			"money.response.transaction-key": "body.id", "money.lookup.without": "repeat", "money.currencies": "EUR",
		}
		c, _, err := Load(LoadParams{Flags: flags})
		if err != nil {
			t.Fatal(err)
		}
		if p := c.Money.Payable(); !p.PointsOnly || !p.SameCurrency || len(p.Currencies) != 1 {
			t.Errorf("%+v", p)
		}
		flags["money.currencies"] = "EUR,USD"
		if _, _, err = Load(LoadParams{Flags: flags}); err == nil || !strings.Contains(err.Error(), "has 2 currencies, but money.request.body does not name currency") {
			t.Errorf("error %v", err)
		}
	})

	t.Run("TellsEverythingAtOnce", func(t *testing.T) {
		t.Parallel()
		_, _, err := Load(LoadParams{Flags: map[string]string{"nope": "1", "money.timeout": "soon", "log.level": "loud", "auth.mode": "open", "redis.stream.max-len": "0"}})
		var invalid *Error
		if !errors.As(err, &invalid) {
			t.Fatalf("error %v", err)
		}
		var names []string
		for _, p := range invalid.Problems {
			names = append(names, p.Name)
		}
		want := []string{"nope", "money.timeout", "redis.stream.max-len", "auth.mode", "log.level"}
		fixture.Equal(t, want, names)
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("the error has more than one line: %q", err)
		}
	})

	t.Run("TellsNoSecrets", func(t *testing.T) {
		t.Parallel()
		_, _, err := Load(LoadParams{Flags: map[string]string{
			"database.url": "mysql://u:hunter2@h/db", "redis.url": "redis://:hun,ter2@a, tcp://u:hunter2/x@b", "money.url": "u:hunter2@pay",
			"money.auth-header": "hunter2", "money.timeout": "1ns",
		}})
		if err == nil || strings.Contains(err.Error(), "ter2") {
			t.Errorf("error %v", err)
		}
	})
}

func TestMasked(t *testing.T) {
	t.Parallel()
	c, _, err := Load(LoadParams{
		File:    writeFile(t, "money:\n  refusal-codes: [A, B]\n  give-up-after: 90m\n  token-file: /run/token\n"),
		Environ: []string{"LARGESSE_MONEY_AUTH_HEADER=X-Api-Key: hunter4", "LARGESSE_WEBHOOK_SECRET=https://hunter5.example", "LARGESSE_NOTIFY_SLACK_URL=https://hooks.example/services/T0/hunter6", "LARGESSE_NOTIFY_SMTP_URL=smtp://kim:hunter7@mail.example", "LARGESSE_NOTIFY_FROM=rewards@shop.example", "LARGESSE_DATABASE_URL=postgres://app:hunter2@db/largesse?sslpassword=hunter3&sslmode=require"},
		Flags:   map[string]string{"redis.url": "redis://:hunter2@a:6379,rediss://b:6379"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := fixture.Must(c.Masked())(t)

	t.Run("HidesSecretsAndTellsSources", func(t *testing.T) {
		t.Parallel()
		if strings.Contains(got, "hunter") {
			t.Errorf("a password is shown:\n%s", got)
		}
		for _, line := range []string{
			"  url: postgres://app:xxxxx@db/largesse?sslpassword=xxxxx&sslmode=require # environment LARGESSE_DATABASE_URL\n",
			"  url: redis://:xxxxx@a:6379,rediss://b:6379 # flag --redis-url\n",
			"    max-len: 100000 # default\n",
			"  timeout: 5s # default\n",
			"  auth-header: 'X-Api-Key: xxxxx' # environment LARGESSE_MONEY_AUTH_HEADER\n",
			"  idempotency-window: 24h # default\n",
			"  secret: xxxxx # environment LARGESSE_WEBHOOK_SECRET\n",
			"  above: 0 # default\n",
			"  slack-url: https://hooks.example/services/xxxxx/xxxxx # environment LARGESSE_NOTIFY_SLACK_URL\n",
			"  smtp-url: smtp://kim:xxxxx@mail.example # environment LARGESSE_NOTIFY_SMTP_URL\n",
		} {
			if !strings.Contains(got, line) {
				t.Errorf("this line is missing: %s\n%s", line, got)
			}
		}
	})

	t.Run("LoadsAgain", func(t *testing.T) {
		t.Parallel()
		again, _, err := Load(LoadParams{File: writeFile(t, got)})
		if err != nil {
			t.Fatal(err)
		}
		want := c
		want.Database.URL = "postgres://app:xxxxx@db/largesse?sslpassword=xxxxx&sslmode=require"
		want.Redis.URL = "redis://:xxxxx@a:6379,rediss://b:6379"
		want.Money.AuthHeader = "X-Api-Key: xxxxx"
		want.Webhook.Secret = "xxxxx"
		want.Notify.SlackURL, want.Notify.SMTPURL = "https://hooks.example/services/xxxxx/xxxxx", "smtp://kim:xxxxx@mail.example"
		fixture.Equal(t, want, again, ignoreSources)
	})
}

func TestMaskSecrets(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                              "",
		"redis://h:6379/0":              "redis://h:6379/0",
		"redis://:p@h":                  "redis://:xxxxx@h",
		"redis://u:p,q@h,redis://v:r@i": "redis://u:xxxxx@h,redis://v:xxxxx@i",
		"https://token@h/p":             "https://xxxxx@h/p",
		"postgres://u@h/d":              "postgres://u@h/d",
		"postgres://u:a/b@h/d":          "postgres://u:xxxxx@h/d",
		"postgres://u:a@b@h/d":          "postgres://u:xxxxx@h/d",
		"postgres://u:p@h/d?password=q": "postgres://u:xxxxx@h/d?password=xxxxx",
		"https://h/p?user=a@b":          "https://h/p?user=a@b",
		"postgres:/u:p@h":               "xxxxx",
		"u:p@h,redis://:p@h":            "xxxxx,redis://:xxxxx@h",
		"host=h user=u password=pw":     "xxxxx",
		"pw":                            "xxxxx",
		"postgres://h password=pw":      "postgres://xxxxx",
		"http://h/?api_key=p&x=1#f":     "http://h/?api_key=xxxxx&x=1#f",
	} {
		if got := maskSecrets(in); got != want {
			t.Errorf("maskSecrets(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestMaskLiterals shows the descriptions of other APIs: what they send as a constant under
// the name of a secret is masked, and what they compute is not.
func TestMaskLiterals(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"money.request.path", "/v1/pay?api_key=k1&to={userId}#f", "/v1/pay?api_key=xxxxx&to={userId}#f"},
		{"money.request.path", "/v1/orders/{key}?key={key}", "/v1/orders/{key}?key={key}"},
		{"money.lookup.path", "/v2/orders?externalId={key}&accessToken=t", "/v2/orders?externalId={key}&accessToken=xxxxx"},
		{"money.request.body", `{"externalId": key, "apiKey": "k\"1", "amount": amount}`, `{"externalId": key, "apiKey": "xxxxx", "amount": amount}`},
		{"money.request.body", `{password: 'p', "idempotencyKey": key, "memo": "token"}`, `{password: "xxxxx", "idempotencyKey": key, "memo": "token"}`},
		{"money.request.body", `{'token': 'S'}`, `{'token': "xxxxx"}`},
		{"money.request.body", "{\"é\": 'ü', \"apiKey\": `S`}", `{"é": 'ü', "apiKey": "xxxxx"}`},
		{"money.request.body", `{"apiKey": ("S"), "a": 1}`, `{"apiKey": ("xxxxx"), "a": 1}`},
		{"money.request.body", `{"apiKey": "S" + ":" + key}`, `{"apiKey": "xxxxx" + "xxxxx" + key}`},
		{"money.request.body", `let apiKey = "S"; {"a": apiKey}`, `let apiKey = "xxxxx"; {"a": apiKey}`},
		{"money.request.body", `let a = "S"; let b = a; {"apiKey": b | upper()}`, `let a = "xxxxx"; let b = a; {"apiKey": b | upper()}`},
		{"money.request.body", `{"auth": {"user": "U", pin: 1234}, ("api" + "Key"): {"a": "S"}["a"]}`, `{"auth": {"user": "xxxxx", pin: "xxxxx"}, ("api" + "Key"): {"a": "xxxxx"}["a"]}`},
		{"money.request.body", `fromPairs([["apiKey", "S"], ["amount", amount]])`, `fromPairs([["apiKey", "xxxxx"], ["amount", amount]])`},
		{"money.request.body", `fromJSON('{"apiKey": "S"}')`, `fromJSON("xxxxx")`},
		{"money.request.body", "{\"a\": 1, // \"apiKey\": \"S\"\n\"b\": amount / 2 /* no S */}", "{\"a\": 1, /* xxxxx */\n\"b\": amount / 2 /* no S */}"},
		{"money.request.body", `{"apiKey": "S`, "xxxxx"},
		{"money.request.body", "", ""},
	} {
		i := slices.IndexFunc(Settings, func(s Setting) bool { return s.Name == c[0] })
		if got := Settings[i].Shown(c[1]); got != c[2] {
			t.Errorf("%s %s is shown as %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

func TestMaskHeader(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "X-Api-Key: k": "X-Api-Key: xxxxx", "Authorization: Basic a: b": "Authorization: xxxxx",
		"secret": "xxxxx", "user:secret": "xxxxx", "se cret: x": "xxxxx", "https://u:p@h": "xxxxx",
	} {
		if got := maskHeader(in); got != want {
			t.Errorf("maskHeader(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzReadYAML checks that no file makes the loader panic, that everything it
// accepts is a setting with a source, and that the resulting Config can be shown
// and read again.
func FuzzReadYAML(f *testing.F) {
	for _, seed := range []string{"", "redis:\n  stream:\n    max-len: 5\n", "roles: [api, payout]\n", "a: &a [*a]\n", "money: {timeout: 1s}\n---\n", "? {a: b}\n: c\n", "data.dir: 'x\\0'\n", "<<: {roles: api}\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		values, problems, err := readYAML("f.yaml", text)
		if err != nil {
			return
		}
		for name, raw := range values {
			if _, ok := settingByName(name); !ok || raw.Source == "" {
				t.Fatalf("accepted %q from %q", name, raw.Source)
			}
		}
		for _, p := range problems {
			if p.Name == "" || p.Detail == "" {
				t.Fatalf("a problem without name or detail: %+v", p)
			}
		}
		c, _ := merge(values)
		v := validation{config: c, resolve: resolveExamples}
		v.run()
		if len(v.problems) > 0 {
			return
		}
		shown, err := c.Masked()
		if err != nil {
			t.Fatalf("a valid Config cannot be shown: %v", err)
		}
		again, problems, err := readYAML("again.yaml", []byte(shown))
		if err != nil || len(problems) > 0 {
			t.Fatalf("the output of Masked cannot be read: %v %v\n%s", err, problems, shown)
		}
		back, problems := merge(again)
		if len(problems) > 0 {
			t.Fatalf("the output of Masked cannot be used: %v\n%s", problems, shown)
		}
		back.Database.URL, back.Redis.URL, back.Money.URL, back.Notify = c.Database.URL, c.Redis.URL, c.Money.URL, c.Notify
		if diff := cmp.Diff(c, back, ignoreSources); diff != "" {
			t.Fatalf("Masked lost something:\n%s", diff)
		}
	})
}

// resolveExamples resolves a few hosts, so that no test asks a real DNS server.
func resolveExamples(_ context.Context, host string) ([]net.IPAddr, error) {
	if ip := net.ParseIP(host); ip != nil {
		return []net.IPAddr{{IP: ip}}, nil
	}
	switch host {
	case "localhost", "loop.example":
		return []net.IPAddr{{IP: net.IPv4(127, 0, 0, 1)}, {IP: net.IPv6loopback}}, nil
	case "mixed.example":
		return []net.IPAddr{{IP: net.IPv4(127, 0, 0, 1)}, {IP: net.IPv4(192, 0, 2, 7)}}, nil
	}
	return nil, errors.New("no such host")
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "largesse.yaml")
	fixture.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
