package config

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/config/configtest"
)

// TestPlainText checks that each connection without encryption to another
// machine causes a warning, and no other does.
func TestPlainText(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := configtest.IssueCert(t, dir, "us", time.Now().Add(time.Hour))
	password := configtest.PutFile(t, filepath.Join(dir, "password"), "secret\n")
	type flags map[string]string
	for name, tc := range map[string]struct {
		flags flags
		warn  string // "": no warning
	}{
		"Nothing":          {flags{}, ""},
		"KeysOverHTTP":     {flags{"auth.mode": "apikey", "http.listen": "0.0.0.0:8080"}, "http.listen 0.0.0.0:8080 accepts API keys in clear text"},
		"KeysOnAnyHost":    {flags{"auth.mode": "apikey", "http.listen": ":8080"}, "http.listen :8080"},
		"KeysOverHTTPS":    {flags{"auth.mode": "apikey", "http.listen": "0.0.0.0:8443", "http.tls-cert": cert, "http.tls-key": key}, ""},
		"KeysOnLoopback":   {flags{"auth.mode": "apikey", "http.listen": "127.0.0.1:8080"}, ""},
		"NoAPI":            {flags{"auth.mode": "apikey", "http.listen": "0.0.0.0:8080", "roles": "payout"}, "has no effect"},
		"Redis":            {flags{"redis.url": "redis://cache.internal:6379"}, "redis.url uses no TLS to cache.internal"},
		"RedisCluster":     {flags{"redis.url": "rediss://a:6379,redis://b:6379"}, "redis.url uses no TLS to b"},
		"RedisTLS":         {flags{"redis.url": "rediss://cache.internal:6379"}, ""},
		"RedisHere":        {flags{"redis.url": "redis://localhost:6379"}, ""},
		"Kafka":            {flags{"kafka.brokers": "kafka-1:9092,kafka-2:9092"}, "kafka.brokers uses no TLS to kafka-1"},
		"KafkaTLS":         {flags{"kafka.brokers": "kafka-1:9092", "kafka.tls": "true"}, ""},
		"KafkaHere":        {flags{"kafka.brokers": "127.0.0.1:9092"}, ""},
		"KafkaSCRAM":       {flags{"kafka.brokers": "k:9092", "kafka.sasl-mechanism": "SCRAM-SHA-256", "kafka.sasl-user": "u", "kafka.sasl-password-file": password}, "kafka.brokers uses no TLS"},
		"KafkaPLAINHere":   {flags{"kafka.brokers": "127.0.0.1:9092", "kafka.sasl-mechanism": "PLAIN", "kafka.sasl-user": "u", "kafka.sasl-password-file": password}, ""},
		"Database":         {flags{"database.url": "postgres://u:hunter2@db.internal/x"}, "database.url does not require TLS to db.internal"},
		"DatabasePrefers":  {flags{"database.url": "postgres://u@db.internal:5432/x?sslmode=prefer"}, "database.url does not require TLS"},
		"DatabaseRequires": {flags{"database.url": "postgres://u@db.internal/x?sslmode=require"}, ""},
		"DatabaseHere":     {flags{"database.url": "postgres://u@[::1]:5432/x"}, ""},
		"DatabaseSocket":   {flags{"database.url": "postgres:///x?host=/run/postgresql"}, ""},
		"Money":            {flags{"money.url": "http://pay.internal"}, "money.url is http:// to pay.internal"},
		"MoneyTLS":         {flags{"money.url": "https://pay.internal"}, ""},
		"MoneyHere":        {flags{"money.url": "http://127.0.0.1:8090"}, ""},
		"MoneyTokenHere":   {flags{"money.url": "http://127.0.0.1:8090", "money.token-file": password}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, warnings, err := Load(LoadParams{Flags: tc.flags})
			if err != nil {
				t.Fatal(err)
			}
			found := slices.ContainsFunc(warnings, func(w string) bool { return tc.warn != "" && strings.Contains(w, tc.warn) && strings.Contains(w, "; ") })
			if tc.warn == "" && len(warnings) > 0 || tc.warn != "" && (!found || len(warnings) != 1) || strings.Contains(strings.Join(warnings, ""), "hunter2") {
				t.Errorf("warnings %q, want %q", warnings, tc.warn)
			}
		})
	}
}
