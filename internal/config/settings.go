package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Setting describes one setting: the file, the environment, the flags and the
// docs are all made from it.
type Setting struct {
	Name    string // e.g. redis.stream.max-len
	Default string // as it would be written in the environment
	Doc     string // one line: what it does, unit, special values
	Kind    SettingKind
	Secret  bool // it may hold a secret, which is masked wherever it is shown
}

// SettingKind is the form of a setting's value.
type SettingKind string

// The kinds. A list is separated by commas.
const (
	KindText     SettingKind = "text"
	KindInt      SettingKind = "int"
	KindBool     SettingKind = "bool"
	KindDuration SettingKind = "duration"
	KindList     SettingKind = "list"
)

// Settings lists every setting, in the order of the docs.
var Settings = []Setting{
	{Name: "data.dir", Default: "./largesse-data", Kind: KindText, Doc: "folder where the embedded engines keep what they keep"},
	{Name: "database.url", Secret: true, Kind: KindText, Doc: "postgres://user:password@host/database; empty: SQLite in data.dir"}, //nolint:gosec // the form of a URL, not a password,
	{Name: "database.max-connections", Default: "20", Kind: KindInt, Doc: "connections this instance may open to the database, 2 to 10000"},
	{Name: "redis.url", Secret: true, Kind: KindText, Doc: "redis://host:6379/0 or rediss://…, several of a cluster by commas; empty: a queue in this process"},
	{Name: "redis.key-prefix", Kind: KindText, Doc: "put before every Redis key, so that systems can share a server"},
	{Name: "redis.stream.enabled", Default: "true", Kind: KindBool, Doc: "payouts go through work streams in Redis; false: each instance works off what it takes itself, without Redis"},
	{Name: "redis.stream.max-len", Default: "100000", Kind: KindInt, Doc: "payouts of a promotion dispatched and not yet done, at least 1; more wait in the database"},
	{Name: "redis.stream.poll-interval-ms", Default: "100", Kind: KindInt, Doc: "longest pause between two empty polls, in milliseconds, 1 to 60000"},
	{Name: "redis.stream.idle-timeout-seconds", Default: "30", Kind: KindInt, Doc: "a pool with nothing to do stops after so many seconds, 1 to 86400"},
	{Name: "redis.stream.batch-size", Default: "10", Kind: KindInt, Doc: "entries one consumer reads at a time, 1 to 1000"},
	{Name: "redis.stream.min-consumer-per-instance", Default: "1", Kind: KindInt, Doc: "fewest consumers of a promotion in this instance, at least 1"},
	{Name: "redis.stream.max-consumer-per-instance", Default: "32", Kind: KindInt, Doc: "most consumers of a promotion in this instance, at most 256"},
	{Name: "redis.stream.in-flight-per-consumer", Default: "64", Kind: KindInt, Doc: "calls one consumer may have open, 1 to 10000; 1: one after the other"},
	{Name: "redis.stream.lease-seconds", Default: "15", Kind: KindInt, Doc: "how long an entry belongs to its reader, in seconds, 1 to 3600; must be above money.timeout"},
	{Name: "kafka.brokers", Kind: KindList, Doc: "host:port of the brokers, by commas; empty: a broker in this process, its log in data.dir"},
	{Name: "kafka.embedded-listen", Default: "127.0.0.1:0", Kind: KindText, Doc: "where the broker in this process listens, a loopback address; port 0: any free one"},
	{Name: "kafka.topic-prefix", Kind: KindText, Doc: "put before every topic name, so that systems can share a cluster"},
	{Name: "kafka.tls", Default: "false", Kind: KindBool, Doc: "true: connections to the brokers are encrypted, TLS 1.2 or newer"},
	{Name: "kafka.ca-file", Kind: KindText, Doc: "PEM file of who may sign the brokers' certificates; empty: the list of the system; read again for each connection"},
	{Name: "kafka.client-cert", Kind: KindText, Doc: "PEM file of our certificate for the brokers (mTLS), with kafka.client-key; read again for each connection"},
	{Name: "kafka.client-key", Kind: KindText, Doc: "PEM file of the key of kafka.client-cert"},
	{Name: "kafka.sasl-mechanism", Kind: KindText, Doc: "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with kafka.sasl-user and kafka.sasl-password-file; empty: no authentication"},
	{Name: "kafka.sasl-user", Kind: KindText, Doc: "who we are to the brokers"},
	{Name: "kafka.sasl-password-file", Kind: KindText, Doc: "file of one line, the password; read again for each connection"},
	{Name: "money.url", Secret: true, Kind: KindText, Doc: "http:// or https:// address of the Money API that pays; empty: none"},
	{Name: "money.timeout", Default: "5s", Kind: KindDuration, Doc: "longest wait for an answer of the Money API, 10ms to 10m"},
	{Name: "money.max-concurrency", Default: "2048", Kind: KindInt, Doc: "calls this instance may have open at the Money API, 1 to 100000"},
	{Name: "money.rate-per-second", Default: "0", Kind: KindInt, Doc: "most calls to the Money API a second, of all instances together; 0: no limit of ours"},
	{Name: "money.max-retries", Default: "5", Kind: KindInt, Doc: "retries after the first call, 0 to 20, for promotions that name none"},
	{Name: "money.settle-after", Default: "60s", Kind: KindDuration, Doc: "longest time a sent request can be under way, at least 100ms; then a look-up's \"not found\" counts"},
	{Name: "money.idempotency-window", Default: "24h", Kind: KindDuration, Doc: "how long the Money API remembers a key, at least 100ms; older payouts are looked up before a call"},
	{Name: "money.give-up-after", Default: "24h", Kind: KindDuration, Doc: "a payout without any answer for so long is settled by look-ups, at least 100ms"},
	{Name: "money.refusal-codes", Kind: KindList, Doc: "codes of the Money API that are final refusals whatever the status, by commas"},
	{Name: "money.auth-header", Secret: true, Kind: KindText, Doc: "\"Name: value\", sent with each call to the Money API; with money.token-file it may be a name alone, for the token"},
	{Name: "money.token-file", Kind: KindText, Doc: "file of one line, sent as Authorization: Bearer … or in the header named by money.auth-header; read again every second"},
	{Name: "money.client-cert", Kind: KindText, Doc: "PEM file of our certificate for the Money API (mTLS), with money.client-key; read again for each connection"},
	{Name: "money.client-key", Kind: KindText, Doc: "PEM file of the key of money.client-cert"},
	{Name: "money.ca-file", Kind: KindText, Doc: "PEM file of who may sign the Money API's certificate; empty: the list of the system"},
	{Name: "approval.above", Default: "0", Kind: KindInt, Doc: "minor units a promotion may be worth before a second person has to approve it; 0: any number"},
	{Name: "webhook.secret", Secret: true, Kind: KindText, Doc: "what webhooks are signed with (HMAC-SHA256), at most 1000 characters, 16 or more random ones; empty: no webhooks"},
	{Name: "coupon.consumer-concurrency", Default: "10", Kind: KindInt, Doc: "transactions this instance may have open for coupon requests from Kafka, and as many while Redis is away, 1 to 1000; below database.max-connections"},
	{Name: "coupon.lock-wait", Default: "2s", Kind: KindDuration, Doc: "longest wait for the lock of a template in mode SYNC, 1ms to 1m"},
	{Name: "coupon.lock-lease", Default: "5s", Kind: KindDuration, Doc: "how long that lock holds when its holder dies, 100ms to 10m"},
	{Name: "coupon.availability-ttl", Default: "30s", Kind: KindDuration, Doc: "longest time a refusal (sold out, closed) is repeated to the same user without asking the gate, while nothing changes; 0s: never"},
	{Name: "coupon.fallback-after", Default: "3s", Kind: KindDuration, Doc: "how long Redis has to be away before coupons are issued through the database, at least 100ms"},
	{Name: "coupon.queue-ttl", Default: "24h", Kind: KindDuration, Doc: "how long after the last ask the keys of a template leave Redis, once nobody waits, at least 1m"},
	{Name: "coupon.average-processing-millis", Default: "0", Kind: KindInt, Doc: "milliseconds per person that waiting times go by, 0 to 3600000; 0: as measured"},
	{Name: "reconcile.interval", Default: "60s", Kind: KindDuration, Doc: "how often the books of each promotion are checked, at least 1s"},
	{Name: "http.listen", Default: "127.0.0.1:8080", Kind: KindText, Doc: "host:port of the API; only a loopback address while auth.mode is none; port 0: any free one"},
	{Name: "http.tls-cert", Kind: KindText, Doc: "PEM file of the API's certificate and those between it and the CA, with http.tls-key: the API is https then; read again when it changes"},
	{Name: "http.tls-key", Kind: KindText, Doc: "PEM file of the key of http.tls-cert"},
	{Name: "http.max-connections", Default: "20000", Kind: KindInt, Doc: "connections to the API that may be open at once, 10 to 1000000, as far as the limit of open files goes; who comes then waits"},
	{Name: "http.rate-limit", Default: "0", Kind: KindInt, Doc: "calls a second that each caller (API key, or subject of a token) has on this instance, twice as many at once after a rest; 0: no limit"},
	{Name: "http.rate-limit-per-user", Default: "0", Kind: KindInt, Doc: "requests for coupons a second that each user has on this instance, whoever asks for him; 0: no limit"},
	{Name: "http.allowed-origins", Kind: KindList, Doc: "origins of web pages that may call from a browser, by commas, e.g. https://shop.example"},
	{Name: "auth.mode", Default: "none", Kind: KindText, Doc: "how callers prove who they are: none (loopback only), apikey, or jwt (tokens, and API keys)"},
	{Name: "auth.jwt.jwks", Kind: KindText, Doc: "where the keys of who signs the tokens are: https:// (http:// on a loopback address), or a file"},
	{Name: "auth.jwt.issuer", Kind: KindText, Doc: "what the claim iss of a token must be"},
	{Name: "auth.jwt.audience", Kind: KindText, Doc: "what the claim aud of a token must hold"},
	{Name: "auth.jwt.user-claim", Default: "sub", Kind: KindText, Doc: "claim that holds the user id of a shopper"},
	{Name: "auth.jwt.role-claim", Default: "role", Kind: KindText, Doc: "claim that holds the role viewer, issuer, operator or admin; a token without it is a shopper's"},
	{Name: "log.level", Default: "info", Kind: KindText, Doc: "debug, info, warn or error"},
	{Name: "log.format", Default: "text", Kind: KindText, Doc: "text or json"},
	{Name: "roles", Default: "api,ingest,payout,issuer,housekeeping", Kind: KindList, Doc: "which parts this instance runs, by commas"},
}

// Env is the setting's name in the environment.
func (s Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(s.Name))
}

// Flag is the setting's name on the command line, without dashes in front.
func (s Setting) Flag() string { return strings.ReplaceAll(s.Name, ".", "-") }

// Group is the part of the name before its first dot.
func (s Setting) Group() string {
	group, _, _ := strings.Cut(s.Name, ".")
	return group
}

// parse reads a value as text into the type that Config has for it.
func (s Setting) parse(text string) (any, error) {
	switch s.Kind {
	case KindText:
		return text, nil
	case KindInt:
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("must be a whole number such as %s", s.Default)
		}
		return n, nil
	case KindBool:
		switch strings.ToLower(strings.TrimSpace(text)) {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
		return nil, fmt.Errorf("must be true or false")
	case KindDuration:
		d, err := time.ParseDuration(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("must be a duration with a unit such as 500ms, 5s or 24h")
		}
		return d, nil
	case KindList:
		list := []string{}
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		return list, nil
	}
	panic("config: setting " + s.Name + " has no kind")
}

// settingByName finds a setting.
func settingByName(name string) (Setting, bool) {
	for _, s := range Settings {
		if s.Name == name {
			return s, true
		}
	}
	return Setting{}, false
}

// value finds the value of a setting in a Config by the koanf tags.
func (c Config) value(name string) any {
	v := reflect.ValueOf(c)
	for part := range strings.SplitSeq(name, ".") {
		v = fieldByTag(v, part)
	}
	return v.Interface()
}

func fieldByTag(v reflect.Value, tag string) reflect.Value {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("koanf") == tag {
			return v.Field(i)
		}
	}
	panic("config: no field of " + v.Type().String() + " has the tag " + tag)
}

// Text returns the value of a setting as it would be written in the
// environment, secrets included.
func (c Config) Text(name string) string { return settingText(c.value(name)) }

// settingText writes a value the way parse reads it.
func settingText(value any) string {
	switch v := value.(type) {
	case []string:
		return strings.Join(v, ",")
	case time.Duration:
		return ShortDuration(v)
	}
	return fmt.Sprint(value)
}

// ShortDuration writes 24h instead of 24h0m0s.
func ShortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// ClosestName finds the name that was most probably meant; "" when none is
// near.
func ClosestName(name string, known []string) string {
	best, bestDistance := "", max(2, len(name)/3)+1
	if len(name) <= 4 {
		bestDistance = 2 // two other letters in a short word make another word
	}
	for _, k := range known {
		if d := editDistance(name, k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// editDistance counts the letters to insert, delete or replace.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
