package config

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/config/configtest"
)

// TestValidateSecurity is about settings that go together. wrong holds
// "setting: what is said", one a problem.
func TestValidateSecurity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := configtest.IssueCert(t, dir, "us", time.Now().Add(time.Hour))
	_, otherKey := configtest.IssueCert(t, dir, "other", time.Now().Add(time.Hour))
	password, none := configtest.PutFile(t, filepath.Join(dir, "password"), "secret\n"), filepath.Join(dir, "none")
	twoLines := configtest.PutFile(t, filepath.Join(dir, "two"), "secret\nhunter2\n")
	type flags map[string]string
	brokers := func(more flags) flags {
		more["kafka.brokers"] = "kafka:9092"
		return more
	}
	const embedded, withoutTLS, withoutSASL = "applies only to kafka.brokers, which is empty", "has no effect without kafka.tls", "has no effect without kafka.sasl-mechanism"
	for name, tc := range map[string]struct {
		flags flags
		wrong []string
	}{
		"TLS":          {brokers(flags{"kafka.tls": "true"}), nil},
		"TLSWithFiles": {brokers(flags{"kafka.tls": "true", "kafka.ca-file": cert, "kafka.client-cert": cert, "kafka.client-key": key}), nil},
		"SASL": {brokers(flags{
			"kafka.sasl-mechanism": "SCRAM-SHA-512", "kafka.sasl-user": "largesse", "kafka.sasl-password-file": password,
		}), nil},
		"EverythingWithTheEmbeddedBroker": {flags{
			"kafka.tls": "true", "kafka.ca-file": cert, "kafka.client-cert": cert, "kafka.client-key": key,
			"kafka.sasl-mechanism": "PLAIN", "kafka.sasl-user": "u", "kafka.sasl-password-file": password,
		}, []string{
			"kafka.tls: " + embedded, "kafka.ca-file: " + embedded, "kafka.client-cert: " + embedded, "kafka.client-key: " + embedded,
			"kafka.sasl-mechanism: must be one of SCRAM-SHA-256, SCRAM-SHA-512",
		}},
		"ALoginForTheEmbeddedBroker": {flags{
			"auth.mode": "apikey", "kafka.embedded-listen": "127.0.0.1:9092",
			"kafka.sasl-mechanism": "SCRAM-SHA-256", "kafka.sasl-user": "u", "kafka.sasl-password-file": password,
		}, nil},
		"PasswordFiles": {flags{
			"database.url": "postgres://u@127.0.0.1/x", "database.password-file": password, "redis.url": "redis://127.0.0.1", "redis.password-file": password,
		}, nil},
		"TwoPasswordsForAServer": {flags{
			"database.url": "postgres://u:p@127.0.0.1/x", "database.password-file": password,
			"redis.url": "redis://127.0.0.1,redis://u:p@127.0.0.1", "redis.password-file": password,
		}, []string{"database.url: must not have a password", "redis.url: must not have a password"}},
		"PasswordFilesForNothing": {
			flags{"database.password-file": password, "redis.password-file": none},
			[]string{"database.password-file: has no effect without database.url", "redis.password-file: has no effect without redis.url"},
		},
		"RedisCA": {flags{"redis.url": "rediss://127.0.0.1", "redis.ca-file": cert}, nil},
		"RedisCAWithoutTLS": {
			flags{"redis.url": "redis://127.0.0.1", "redis.ca-file": cert},
			[]string{"redis.ca-file: has no effect without TLS"},
		},
		"RedisCAForNothing": {flags{"redis.ca-file": cert}, []string{"redis.ca-file: has no effect without TLS"}},
		"NoSuchRedisCA":     {flags{"redis.url": "rediss://127.0.0.1", "redis.ca-file": none}, []string{"redis.ca-file: cannot be read"}},
		"NotARedisCA":       {flags{"redis.url": "rediss://127.0.0.1", "redis.ca-file": key}, []string{"redis.ca-file: holds no PEM certificate"}},
		"NoSuchPasswordFile": {
			flags{"redis.url": "redis://127.0.0.1", "redis.password-file": none},
			[]string{"redis.password-file: cannot be read"},
		},
		"TheEmbeddedBrokerOpenToAll": {
			flags{"auth.mode": "apikey", "kafka.embedded-listen": "127.0.0.1:9092"},
			[]string{"kafka.embedded-listen: would let every process"},
		},
		"FilesWithoutTLS": {
			brokers(flags{"kafka.ca-file": cert, "kafka.client-cert": cert, "kafka.client-key": key}),
			[]string{"kafka.ca-file: " + withoutTLS, "kafka.client-cert: " + withoutTLS, "kafka.client-key: " + withoutTLS},
		},
		"HalfAPair":      {brokers(flags{"kafka.tls": "true", "kafka.client-cert": cert}), []string{"kafka.client-cert: must be set together with kafka.client-key, or not at all"}},
		"TheOtherHalf":   {brokers(flags{"kafka.tls": "true", "kafka.client-key": key}), []string{"kafka.client-cert: must be set together with kafka.client-key, or not at all"}},
		"AnothersKey":    {brokers(flags{"kafka.tls": "true", "kafka.client-cert": cert, "kafka.client-key": otherKey}), []string{"kafka.client-cert: cannot be used with kafka.client-key"}},
		"NoSuchCA":       {brokers(flags{"kafka.tls": "true", "kafka.ca-file": none}), []string{"kafka.ca-file: cannot be read"}},
		"NotACA":         {brokers(flags{"kafka.tls": "true", "kafka.ca-file": key}), []string{"kafka.ca-file: holds no PEM certificate"}},
		"SASLAlone":      {brokers(flags{"kafka.sasl-mechanism": "PLAIN"}), []string{"kafka.sasl-user: is missing", "kafka.sasl-password-file: is missing"}},
		"UserAlone":      {brokers(flags{"kafka.sasl-user": "u", "kafka.sasl-password-file": password}), []string{"kafka.sasl-user: " + withoutSASL, "kafka.sasl-password-file: " + withoutSASL}},
		"NoSuchPassword": {brokers(flags{"kafka.sasl-mechanism": "PLAIN", "kafka.sasl-user": "u", "kafka.sasl-password-file": none}), []string{"kafka.sasl-password-file: cannot be read"}},
		"TwoPasswords":   {brokers(flags{"kafka.sasl-mechanism": "PLAIN", "kafka.sasl-user": "u", "kafka.sasl-password-file": twoLines}), []string{"kafka.sasl-password-file: must hold one line"}},
		"OtherMechanism": {
			brokers(flags{"kafka.sasl-mechanism": "GSSAPI", "kafka.sasl-user": "u", "kafka.sasl-password-file": password}),
			[]string{"kafka.sasl-mechanism: must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"},
		},

		"HTTPS":                {flags{"http.tls-cert": cert, "http.tls-key": key}, nil},
		"HTTPSWithoutKey":      {flags{"http.tls-cert": cert}, []string{"http.tls-cert: must be set together with http.tls-key, or not at all"}},
		"HTTPSWithoutCert":     {flags{"http.tls-key": key}, []string{"http.tls-cert: must be set together with http.tls-key, or not at all"}},
		"HTTPSWithAnothersKey": {flags{"http.tls-cert": cert, "http.tls-key": otherKey}, []string{"http.tls-cert: cannot be used with http.tls-key"}},
		"HTTPSWithoutFiles":    {flags{"http.tls-cert": none, "http.tls-key": none}, []string{"http.tls-cert: cannot be used with http.tls-key: open"}},
		"HTTPSElsewhere":       {flags{"http.tls-cert": none, "http.tls-key": none, "roles": "payout"}, nil},
		"NoConnections":        {flags{"http.max-connections": "0"}, []string{"http.max-connections: must be from 10 to 1000000"}},
		"ManyConnections":      {flags{"http.max-connections": "1000000"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, found := merge(readFlags(tc.flags))
			if len(found) > 0 {
				t.Fatal(found)
			}
			v := validation{config: c, resolve: resolveExamples}
			v.run()
			for i, p := range v.problems {
				said := p.Name + ": " + p.Detail
				if i >= len(tc.wrong) || !strings.HasPrefix(said, tc.wrong[i]) {
					t.Errorf("problem %d is %q", i, said)
				}
				if strings.Contains(p.String(), "hunter2") {
					t.Errorf("a password is shown: %s", p)
				}
			}
			if len(v.problems) < len(tc.wrong) {
				t.Errorf("%d problems, want %q", len(v.problems), tc.wrong)
			}
		})
	}

	t.Run("ClearTextPasswordsAreWarnedOf", func(t *testing.T) {
		t.Parallel()
		for mechanism, want := range map[string]int{"PLAIN": 2, "SCRAM-SHA-256": 1} { // the other one is about the records
			_, warnings, err := Load(LoadParams{Flags: brokers(flags{
				"kafka.sasl-mechanism": mechanism, "kafka.sasl-user": "u", "kafka.sasl-password-file": password,
			})})
			if err != nil || len(warnings) != want {
				t.Errorf("%s: %v, warnings %q", mechanism, err, warnings)
			}
		}
	})
}
