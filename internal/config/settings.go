package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/reward"
)

// Setting describes one setting. The file, the environment, the flags and the docs
// are derived from it.
type Setting struct {
	Name    string // e.g. redis.stream.max-len
	Default string // in the form of an environment variable
	Doc     string // one line: what it does, unit, special values
	Kind    SettingKind
	Secret  bool // the value may contain a secret, which is masked in all output
	// Min and Max limit a number or a duration, in the form of an environment variable.
	// Empty means no limit. OrZero also allows 0 below Min.
	Min, Max string
	OrZero   bool
	Words    []string // the only values of a text; nil: any
}

// SettingKind is the type of a setting's value.
type SettingKind string

// The kinds. The items of a list are separated by commas.
const (
	KindText     SettingKind = "text"
	KindInt      SettingKind = "int"
	KindBool     SettingKind = "bool"
	KindDuration SettingKind = "duration"
	KindList     SettingKind = "list"
)

// boundsMark stands for the limits of a setting in its Doc.
const boundsMark = "{bounds}"

// Settings lists every setting, in the order of the docs.
var Settings = withBounds([]Setting{
	{Name: "data.dir", Default: "./largesse-data", Kind: KindText, Doc: "directory for the data of the embedded engines"},
	{Name: "database.url", Secret: true, Kind: KindText, Doc: "PostgreSQL URL, postgres://user:password@host/database; empty: SQLite in data.dir"}, //nolint:gosec // the form of a URL, not a password
	{Name: "database.password-file", Kind: KindText, Doc: "file with one line, the password for database.url, which then must not have one; reread for each connection"},
	{Name: "database.max-connections", Default: "20", Kind: KindInt, Min: "2", Max: "10000", Doc: "maximum database connections of this instance; {bounds}"},
	{Name: "database.read-connections", Default: "5", Kind: KindInt, Min: "1", Max: "1000", Doc: "maximum further database connections of this instance for reads through the API; {bounds}; one caller has all but one of them"},
	{Name: "redis.url", Secret: true, Kind: KindText, Doc: "redis:// or rediss:// URL, or comma-separated URLs of Cluster nodes; empty: in-process queue and gate"},
	{Name: "redis.password-file", Kind: KindText, Doc: "file with one line, the password for redis.url, which then must not have one; reread for each connection"},
	{Name: "redis.ca-file", Kind: KindText, Doc: "PEM file of the CAs trusted for the certificates of redis.url, which then must be rediss://; empty: system CAs; reread for each connection"},
	{Name: "redis.key-prefix", Kind: KindText, Doc: "prefix of every Redis key, so that several systems can share a server"},
	{Name: "redis.stream.enabled", Default: "true", Kind: KindBool, Doc: "dispatch payouts through Redis Streams; false: each instance works from its own in-process queue"},
	{Name: "redis.stream.max-len", Default: "100000", Kind: KindInt, Min: "1", Max: "1000000000", Doc: "maximum dispatched, unfinished payouts per promotion; at least 1; the rest wait in the database"},
	{Name: "redis.stream.poll-interval-ms", Default: "100", Kind: KindInt, Min: "1", Max: "60000", Doc: "maximum pause between empty polls, in milliseconds; {bounds}"},
	{Name: "redis.stream.idle-timeout-seconds", Default: "30", Kind: KindInt, Min: "1", Max: "86400", Doc: "seconds without work after which a consumer pool stops; {bounds}"},
	{Name: "redis.stream.batch-size", Default: "10", Kind: KindInt, Min: "1", Max: "1000", Doc: "maximum entries per read request; {bounds}"},
	{Name: "redis.stream.min-consumer-per-instance", Default: "1", Kind: KindInt, Min: "1", Max: "256", Doc: "minimum consumers per promotion on this instance; at least 1"},
	{Name: "redis.stream.max-consumer-per-instance", Default: "32", Kind: KindInt, Min: "1", Max: "256", Doc: "maximum consumers per promotion on this instance; at most 256"},
	{Name: "redis.stream.in-flight-per-consumer", Default: "64", Kind: KindInt, Min: "1", Max: "10000", Doc: "maximum provider calls in flight per consumer; {bounds}; 1: one after another"},
	{Name: "redis.stream.lease-seconds", Default: "15", Kind: KindInt, Min: "1", Max: "3600", Doc: "seconds that a consumer owns an entry before others may claim it; {bounds}, above money.timeout"},
	{Name: "kafka.brokers", Kind: KindList, Doc: "comma-separated host:port of some brokers; empty: embedded broker with its log in data.dir"},
	{Name: "kafka.embedded-listen", Default: "127.0.0.1:0", Kind: KindText, Doc: "loopback host:port of the embedded broker; port 0: any free port; unless auth.mode is none, needs kafka.sasl-mechanism"},
	{Name: "kafka.topic-prefix", Kind: KindText, Doc: "prefix of every topic and consumer group, so that several systems can share a cluster"},
	{Name: "kafka.tls", Default: "false", Kind: KindBool, Doc: "encrypt connections to the brokers, with TLS 1.2 or later"},
	{Name: "kafka.ca-file", Kind: KindText, Doc: "PEM file of the CAs trusted for broker certificates; empty: system CAs; reread for each connection"},
	{Name: "kafka.client-cert", Kind: KindText, Doc: "PEM file of the client certificate for the brokers (mTLS); needs kafka.client-key; reread for each connection"},
	{Name: "kafka.client-key", Kind: KindText, Doc: "PEM file of the private key of kafka.client-cert"},
	{Name: "kafka.sasl-mechanism", Kind: KindText, Doc: "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; needs kafka.sasl-user and kafka.sasl-password-file; empty: no SASL; the embedded broker asks its clients for the same login"},
	{Name: "kafka.sasl-user", Kind: KindText, Doc: "SASL user name for the brokers"},
	{Name: "kafka.sasl-password-file", Kind: KindText, Doc: "file with one line, the SASL password; reread for each connection"},
	{Name: "money.url", Secret: true, Kind: KindText, Doc: "http:// or https:// base URL of the Money API; empty: none"},
	{Name: "money.timeout", Default: "5s", Kind: KindDuration, Min: "10ms", Max: "10m", Doc: "maximum wait for a Money API response; {bounds}"},
	{Name: "money.max-concurrency", Default: "2048", Kind: KindInt, Min: "1", Max: "100000", Doc: "maximum Money API calls in flight on this instance; {bounds}"},
	{Name: "money.rate-per-second", Default: "0", Kind: KindInt, Min: "0", Max: "1000000", Doc: "maximum Money API calls per second of all instances together; 0: unlimited"},
	{Name: "money.max-retries", Default: "5", Kind: KindInt, Min: "0", Max: "20", Doc: "retries after the first call, unless the promotion sets its own; {bounds}"},
	{Name: "money.settle-after", Default: "60s", Kind: KindDuration, Min: "100ms", Doc: "longest time that a sent charge may still take effect; {bounds}; only a later lookup can prove \"not charged\""},
	{Name: "money.idempotency-window", Default: "24h", Kind: KindDuration, Min: "100ms", Doc: "time that the Money API remembers a key; {bounds}; older payouts are looked up before a charge"},
	{Name: "money.give-up-after", Default: "24h", Kind: KindDuration, Min: "100ms", Doc: "time without a conclusive response after which lookups settle a payout; {bounds}"},
	{Name: "money.refusal-codes", Kind: KindList, Doc: "comma-separated Money API codes that mean a final refusal on any 4xx status"},
	{Name: "money.currencies", Kind: KindList, Doc: "comma-separated currencies that the provider pays, such as EUR, XXX for points; promotions in others are refused; empty: any"},
	{Name: "money.auth-header", Secret: true, Kind: KindText, Doc: "\"Name: value\" header of each Money API call; with money.token-file, a bare name carries the token"},
	{Name: "money.token-file", Kind: KindText, Doc: "file with one line, sent as Authorization: Bearer or in the header that money.auth-header names; reread every second"},
	{Name: "money.client-cert", Kind: KindText, Doc: "PEM file of the client certificate for the Money API (mTLS); needs money.client-key; reread for each connection"},
	{Name: "money.client-key", Kind: KindText, Doc: "PEM file of the private key of money.client-cert"},
	{Name: "money.ca-file", Kind: KindText, Doc: "PEM file of the CAs trusted for the Money API certificate; empty: system CAs"},
	{Name: "money.request.path", Secret: true, Kind: KindText, Doc: "path of a charge below money.url, such as /v2/orders/{key}, at a provider with another API than the Money API; empty: the Money API"},
	{Name: "money.request.method", Default: "POST", Kind: KindText, Doc: "method of such a charge: POST or PUT"},
	{Name: "money.request.headers", Secret: true, Kind: KindText, Doc: "headers of such charges and lookups, one \"Name: value\" per line"},
	{Name: "money.request.key", Default: `promotionId + ":" + targetId`, Kind: KindText, Doc: "expression: the idempotency key of a payout at such a provider, in 1 to 200 characters"},
	{Name: "money.request.body", Secret: true, Kind: KindText, Doc: "expression: the value that is sent as JSON, such as {\"externalId\": key, \"amount\": amount}"},
	{Name: "money.request.signature", Kind: KindText, Doc: "expression: the text to sign with HMAC-SHA256; empty: no signature"},
	{Name: "money.request.signature-key-file", Kind: KindText, Doc: "file with one line, the key of money.request.signature; reread every second"},
	{Name: "money.request.signature-encoding", Default: "hex", Kind: KindText, Doc: "encoding of the signature: hex or base64"},
	{Name: "money.response.paid", Kind: KindText, Doc: "rule: which responses to a charge mean that it was made, now or before"},
	{Name: "money.response.transaction-key", Kind: KindText, Doc: "expression: the transaction in a response that money.response.paid matches"},
	{Name: "money.response.refused", Kind: KindText, Doc: "rule: which responses are a final refusal; empty: none"},
	{Name: "money.response.misconfigured", Default: "status in [301, 302, 303, 307, 308, 401, 403, 404, 405, 407, 413, 415]", Kind: KindText, Doc: "rule: which responses pause the promotion, because the settings are wrong and nothing was charged"},
	{Name: "money.response.throttled", Default: "status == 429", Kind: KindText, Doc: "rule: which responses ask for later calls, with nothing charged"},
	{Name: "money.response.code", Kind: KindText, Doc: "expression: the code of an error; empty: the field code of the body"},
	{Name: "money.response.message", Kind: KindText, Doc: "expression: the message of an error, for people; empty: the field message, detail or title of the body, or else the body"},
	{Name: "money.lookup.path", Secret: true, Kind: KindText, Doc: "path and query of a lookup below money.url, such as /v2/orders?externalId={key}; empty: the provider has none"},
	{Name: "money.lookup.found", Kind: KindText, Doc: "rule: which responses to a lookup mean that the charge was made"},
	{Name: "money.lookup.transaction-key", Kind: KindText, Doc: "expression: the transaction in a response that money.lookup.found matches"},
	{Name: "money.lookup.not-found", Kind: KindText, Doc: "rule: which responses to a lookup mean that the charge was not made"},
	{Name: "money.lookup.without", Kind: KindText, Doc: "without money.lookup.path it must be repeat: a charge without a conclusive response is repeated with the same key within money.idempotency-window, then waits for a person in UNKNOWN"},
	{Name: "approval.above", Default: "0", Kind: KindInt, Min: "0", Doc: "worth of a promotion, in minor units, above which another person must approve its targets; 0: never"},
	{Name: "approval.codes-above", Default: "0", Kind: KindInt, Min: "0", Max: strconv.Itoa(reward.TemplateQuantityMax), Doc: "quantity of a coupon template above which another person must approve it; at most 1000000000; 0: never"},
	{Name: "approval.above-per-day", Default: "0", Kind: KindInt, Min: "0", Doc: "worth of all promotions of one author that start within 24 hours, in minor units and per currency, above which another person must approve the next one; needs approval.above; 0: no limit"},
	{Name: "approval.currencies", Kind: KindList, Doc: "comma-separated CODE:ABOVE or CODE:ABOVE:PER-DAY, such as KRW:1000000,EUR:50000:200000: what replaces approval.above and approval.above-per-day for a currency of ISO 4217, in its minor units; XXX: everything without a currency; needs approval.above"},
	{Name: "webhook.secret", Secret: true, Kind: KindText, Doc: "key that signs webhooks to a promotion's webhookUrl (HMAC-SHA256); at most 1000 characters, at least 16 random ones advised; empty: a promotion can have none"},
	{Name: "webhook.allow-private", Default: "false", Kind: KindBool, Doc: "send webhooks to private and loopback addresses, too; metadata addresses of clouds are always refused"},
	{Name: "coupon.consumer-concurrency", Default: "10", Kind: KindInt, Min: "1", Max: "1000", Doc: "maximum concurrent transactions of this instance for KAFKA mode, and as many again during a Redis outage; {bounds}, below database.max-connections"},
	{Name: "coupon.lock-wait", Default: "2s", Kind: KindDuration, Min: "1ms", Max: "1m", Doc: "maximum wait for a template's lock in SYNC mode; {bounds}"},
	{Name: "coupon.lock-lease", Default: "5s", Kind: KindDuration, Min: "100ms", Max: "10m", Doc: "time after which the lock of a crashed holder expires; {bounds}"},
	{Name: "coupon.availability-ttl", Default: "30s", Kind: KindDuration, Min: "0s", Doc: "maximum time that SOLD_OUT and CLOSED are cached per user while the template is unchanged; 0s: not cached"},
	{Name: "coupon.lapsed-holds", Default: "1", Kind: KindInt, Min: "0", Max: "1000", Doc: "holds that a user may let end without a confirmation; from then on, the user waits for as long as a hold lasts after each; {bounds}; 0: no limit"},
	{Name: "coupon.fallback-after", Default: "3s", Kind: KindDuration, Min: "100ms", Doc: "duration of a Redis outage after which coupons are issued through the database; {bounds}"},
	{Name: "coupon.queue-ttl", Default: "24h", Kind: KindDuration, Min: "1m", Doc: "time after the last request when an unused template's Redis keys are removed; {bounds}; never while users wait"},
	{Name: "coupon.average-processing-millis", Default: "0", Kind: KindInt, Min: "0", Max: "3600000", Doc: "milliseconds per user for wait estimates; {bounds}; 0: measured"},
	{Name: "reconcile.interval", Default: "60s", Kind: KindDuration, Min: "1s", Doc: "interval between reconciliations of each promotion and coupon template; {bounds}"},
	{Name: "retention.audit", Default: "0s", Kind: KindDuration, Min: "1h", OrZero: true, Doc: "time after which audit entries are removed; {bounds}; 0s: never"},
	{Name: "retention.dead-letters", Default: "0s", Kind: KindDuration, Min: "1h", OrZero: true, Doc: "time after its replay or discard when a dead letter is removed; {bounds}; 0s: never; open ones stay"},
	{Name: "retention.coupons", Default: "0s", Kind: KindDuration, Doc: "time after the closing time of a coupon template when it is archived and its coupons are removed, if none is valid any more; at least coupon.queue-ttl + 48h; 0s: never"},
	{Name: "retention.payouts", Default: "0s", Kind: KindDuration, Doc: "time after the end of a promotion when it is archived and its payouts are removed; at least money.idempotency-window + money.settle-after; 0s: never"},
	{Name: "http.listen", Default: "127.0.0.1:8080", Kind: KindText, Doc: "host:port of the API; loopback only while auth.mode is none; port 0: any free port"},
	{Name: "http.tls-cert", Kind: KindText, Doc: "PEM file of the API's certificate chain; with http.tls-key, the API uses HTTPS; reread when it changes"},
	{Name: "http.tls-key", Kind: KindText, Doc: "PEM file of the private key of http.tls-cert"},
	{Name: "http.max-connections", Default: "20000", Kind: KindInt, Min: "10", Max: "1000000", Doc: "maximum open connections to the API; {bounds}, within the open-file limit; if all are in use, idle ones are closed, and further clients wait"},
	{Name: "http.max-held-answers", Default: "16000", Kind: KindInt, Min: "1", Max: "1000000", Doc: "maximum open event streams and coupon requests with Prefer: wait; {bounds}; one API key holds at most half, and four fifths of all connections are the limit in any case"},
	{Name: "http.probe-listen", Kind: KindText, Doc: "host:port of /healthz, /readyz and /metrics; empty: http.listen; if set, /metrics is only there; port 0: any free port"},
	{Name: "http.rate-limit", Default: "0", Kind: KindInt, Min: "0", Max: "1000000", Doc: "calls per second per caller (API key or token subject) on this instance, with bursts of twice as many; 0: unlimited"},
	{Name: "http.rate-limit-per-user", Default: "20", Kind: KindInt, Min: "0", Max: "1000000", Doc: "coupon requests per second per user on this instance, whichever caller sends them, and calls with a shopper's token; bursts of twice as many; 0: unlimited"},
	{Name: "http.allowed-origins", Kind: KindList, Doc: "comma-separated origins of web pages that may call the API, e.g. https://shop.example"},
	{Name: "http.trusted-proxies", Kind: KindList, Doc: "comma-separated networks of proxies whose Forwarded or X-Forwarded-For header names the client and whose traceparent the trace, e.g. 10.0.0.0/8; an address is a network of one"},
	{Name: "auth.mode", Default: "none", Kind: KindText, Words: []string{auth.ModeNone, auth.ModeAPIKey, auth.ModeJWT}, Doc: "how callers authenticate: none (loopback only), apikey, or jwt (tokens and API keys)"},
	{Name: "auth.jwt.jwks", Kind: KindText, Doc: "location of the token issuer's keys: an https:// URL (http:// on loopback) or a file"},
	{Name: "auth.jwt.issuer", Kind: KindText, Doc: "required value of a token's iss claim"},
	{Name: "auth.jwt.audience", Kind: KindText, Doc: "value that a token's aud claim must contain"},
	{Name: "auth.jwt.user-claim", Default: "sub", Kind: KindText, Doc: "claim that holds a shopper's user ID"},
	{Name: "auth.jwt.role-claim", Default: "role", Kind: KindText, Doc: "claim that holds the role: viewer, issuer, operator or admin; a token without it is a shopper's"},
	{Name: "log.level", Default: "info", Kind: KindText, Words: []string{"debug", "info", "warn", "error"}, Doc: "minimum level of log lines: debug, info, warn or error"},
	{Name: "log.format", Default: "text", Kind: KindText, Words: []string{"text", "json"}, Doc: "format of log lines: text or json"},
	{Name: "otel.endpoint", Kind: KindText, Doc: "http:// or https:// base URL of an OTLP collector, which gets traces at /v1/traces; empty: no traces"},
	{Name: "otel.sample-one-in", Default: "100", Kind: KindInt, Min: "0", Max: "1000000000", Doc: "traces one of so many requests and batches of records that have no sampled trace of their own; {bounds}; 0: none; 1: all"},
	{Name: "roles", Default: "api,ingest,payout,issuer,housekeeping", Kind: KindList, Doc: "comma-separated roles that this instance runs"},
})

// withBounds completes the docs of settings.
func withBounds(settings []Setting) []Setting {
	for i, s := range settings {
		settings[i].Doc = strings.ReplaceAll(s.Doc, boundsMark, strings.TrimPrefix(s.bounds(), "from "))
	}
	return settings
}

// bounds describes the limits of a number or a duration.
func (s Setting) bounds() string {
	if s.Max != "" {
		return "from " + s.Min + " to " + s.Max
	}
	return "at least " + s.Min
}

// check returns what is wrong with a value by the limits and words of its setting, or "".
func (s Setting) check(value any) string {
	switch {
	case s.Words != nil && !slices.Contains(s.Words, settingText(value)):
		return "must be one of " + strings.Join(s.Words, ", ")
	case s.Min != "" && s.outside(reflect.ValueOf(value).Int()):
		return "must be " + s.bounds()
	}
	return ""
}

// outside reports whether a number or a duration is outside of its limits.
func (s Setting) outside(n int64) bool {
	limit := func(text string) int64 {
		v, err := s.parse(text)
		if err != nil {
			panic("config: setting " + s.Name + " has the limit " + text)
		}
		return reflect.ValueOf(v).Int()
	}
	return n < limit(s.Min) && (n != 0 || !s.OrZero) || s.Max != "" && n > limit(s.Max)
}

// Env returns the name of the setting's environment variable.
func (s Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(s.Name))
}

// Flag returns the name of the setting's flag, without leading dashes.
func (s Setting) Flag() string { return strings.ReplaceAll(s.Name, ".", "-") }

// Group returns the part of the name before its first dot.
func (s Setting) Group() string {
	group, _, _ := strings.Cut(s.Name, ".")
	return group
}

// parse parses a value into the type of its field in Config.
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

// settingByName returns the setting with a name, and reports whether it exists.
func settingByName(name string) (Setting, bool) {
	for _, s := range Settings {
		if s.Name == name {
			return s, true
		}
	}
	return Setting{}, false
}

// value returns the value of a setting.
func (c *Config) value(name string) any { return c.field(name).Interface() }

// field returns the field of a setting. It finds it by the tags.
func (c *Config) field(name string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for part := range strings.SplitSeq(name, ".") {
		v = fieldByTag(v, part)
	}
	return v
}

func fieldByTag(v reflect.Value, tag string) reflect.Value {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("setting") == tag {
			return v.Field(i)
		}
	}
	panic("config: no field of " + v.Type().String() + " has the tag " + tag)
}

// Text returns the value of a setting in the form of an environment variable,
// including secrets.
func (c Config) Text(name string) string { return settingText(c.value(name)) }

// settingText formats a value so that parse can read it.
func settingText(value any) string {
	switch v := value.(type) {
	case []string:
		return strings.Join(v, ",")
	case time.Duration:
		return ShortDuration(v)
	}
	return fmt.Sprint(value)
}

// ShortDuration formats a duration without zero units: 24h instead of 24h0m0s.
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

// ClosestName returns the known name that is most similar to name, or "" if none is
// similar enough.
func ClosestName(name string, known []string) string {
	best, bestDistance := "", max(2, len(name)/3)+1
	if len(name) <= 4 {
		bestDistance = 2 // a short word with two other letters is another word
	}
	for _, k := range known {
		if d := editDistance(name, k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// editDistance returns the number of bytes to insert, delete or replace to turn a
// into b.
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
