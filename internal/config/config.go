// Package config defines the settings of an instance. Settings lists them, Load reads
// them from a YAML file, the environment and flags, and Validate checks each setting
// alone and against the others.
package config

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config contains every setting of an instance. Default and Load return valid
// ones; the zero Config is invalid. docs/settings.md lists names, defaults and
// meanings.
type Config struct {
	Data      Data      `setting:"data"`
	Database  Database  `setting:"database"`
	Redis     Redis     `setting:"redis"`
	Kafka     Kafka     `setting:"kafka"`
	Money     Money     `setting:"money"`
	Approval  Approval  `setting:"approval"`
	Webhook   Webhook   `setting:"webhook"`
	Notify    Notify    `setting:"notify"`
	Coupon    Coupon    `setting:"coupon"`
	Reconcile Reconcile `setting:"reconcile"`
	Retention Retention `setting:"retention"`
	HTTP      HTTP      `setting:"http"`
	Console   Console   `setting:"console"`
	Shop      Shop      `setting:"shop"`
	Auth      Auth      `setting:"auth"`
	Log       Log       `setting:"log"`
	Otel      Otel      `setting:"otel"`
	Roles     []string  `setting:"roles" default:"api,ingest,payout,issuer,housekeeping" doc:"comma-separated roles that this instance runs"`

	// sources maps settings to the source of their value. A missing setting has
	// its default.
	sources map[string]string
}

// Data configures the data of the embedded engines.
type Data struct {
	Dir string `setting:"dir" default:"./largesse-data" doc:"directory for the data of the embedded engines"`
}

// Database configures the database. With an empty URL, it is SQLite in Data.Dir.
type Database struct {
	URL             string `setting:"url" secret:"true" doc:"PostgreSQL URL, postgres://user:password@host/database; empty: SQLite in data.dir"`
	PasswordFile    string `setting:"password-file" doc:"file with one line, the password for database.url, which then must not have one; reread for each connection"`
	MaxConnections  int    `setting:"max-connections" default:"20" min:"2" max:"10000" doc:"maximum database connections of this instance; {bounds}"`
	ReadConnections int    `setting:"read-connections" default:"5" min:"1" max:"1000" doc:"maximum further database connections of this instance for reads through the API; {bounds}; one caller has all but one of them"`
}

// Redis configures the work queue and the gate. With an empty URL, they run in this
// process.
type Redis struct {
	URL          string `setting:"url" secret:"true" doc:"redis:// or rediss:// URL, or comma-separated URLs of Cluster nodes; empty: in-process queue and gate"`
	PasswordFile string `setting:"password-file" doc:"file with one line, the password for redis.url, which then must not have one; reread for each connection"`
	CAFile       string `setting:"ca-file" doc:"PEM file of the CAs trusted for the certificates of redis.url, which then must be rediss://; empty: system CAs; reread for each connection"`
	KeyPrefix    string `setting:"key-prefix" doc:"prefix of every Redis key, so that several systems can share a server"`
	Stream       Stream `setting:"stream"`
}

// Stream limits the streams of promotions and the pools that read them.
type Stream struct {
	Enabled                bool `setting:"enabled" default:"true" doc:"dispatch payouts through Redis Streams; false: each instance works from its own in-process queue"`
	MaxLen                 int  `setting:"max-len" default:"100000" min:"1" max:"1000000000" doc:"maximum dispatched, unfinished payouts per promotion; at least 1; the rest wait in the database"`
	PollIntervalMs         int  `setting:"poll-interval-ms" default:"100" min:"1" max:"60000" doc:"maximum pause between empty polls, in milliseconds; {bounds}"`
	IdleTimeoutSeconds     int  `setting:"idle-timeout-seconds" default:"30" min:"1" max:"86400" doc:"seconds without work after which a consumer pool stops; {bounds}"`
	BatchSize              int  `setting:"batch-size" default:"10" min:"1" max:"1000" doc:"maximum entries per read request, of which a consumer with room sends several as one; {bounds}"`
	MinConsumerPerInstance int  `setting:"min-consumer-per-instance" default:"1" min:"1" max:"256" doc:"minimum consumers per promotion on this instance; at least 1"`
	MaxConsumerPerInstance int  `setting:"max-consumer-per-instance" default:"32" min:"1" max:"256" doc:"maximum consumers per promotion on this instance; at most 256"`
	InFlightPerConsumer    int  `setting:"in-flight-per-consumer" default:"64" min:"1" max:"10000" doc:"maximum provider calls in flight per consumer; {bounds}; 1: one after another"`
	LeaseSeconds           int  `setting:"lease-seconds" default:"15" min:"1" max:"3600" doc:"seconds that a consumer owns an entry before others may claim it; {bounds}, above money.timeout"`
}

// PollInterval returns the maximum pause between empty polls.
func (c Stream) PollInterval() time.Duration {
	return time.Duration(c.PollIntervalMs) * time.Millisecond
}

// IdleTimeout returns the time without work after which a pool stops.
func (c Stream) IdleTimeout() time.Duration {
	return time.Duration(c.IdleTimeoutSeconds) * time.Second
}

// Lease returns the time that a consumer owns an entry before others may claim it.
func (c Stream) Lease() time.Duration {
	return time.Duration(c.LeaseSeconds) * time.Second
}

// Kafka configures the connection to the brokers. Without Brokers, the instance runs
// the embedded broker.
type Kafka struct {
	Brokers          []string `setting:"brokers" doc:"comma-separated host:port of some brokers; empty: embedded broker with its log in data.dir"`
	EmbeddedListen   string   `setting:"embedded-listen" default:"127.0.0.1:0" doc:"loopback host:port of the embedded broker; port 0: any free port; unless auth.mode is none, needs kafka.sasl-mechanism"`
	TopicPrefix      string   `setting:"topic-prefix" doc:"prefix of every topic and consumer group, so that several systems can share a cluster"`
	TLS              bool     `setting:"tls" default:"false" doc:"encrypt connections to the brokers, with TLS 1.2 or later"`
	CAFile           string   `setting:"ca-file" doc:"PEM file of the CAs trusted for broker certificates; empty: system CAs; reread for each connection"`
	ClientCert       string   `setting:"client-cert" doc:"PEM file of the client certificate for the brokers (mTLS); needs kafka.client-key; reread for each connection"`
	ClientKey        string   `setting:"client-key" doc:"PEM file of the private key of kafka.client-cert"`
	SASLMechanism    string   `setting:"sasl-mechanism" doc:"PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; needs kafka.sasl-user and kafka.sasl-password-file; empty: no SASL; the embedded broker asks its clients for the same login"`
	SASLUser         string   `setting:"sasl-user" doc:"SASL user name for the brokers"`
	SASLPasswordFile string   `setting:"sasl-password-file" doc:"file with one line, the SASL password; reread for each connection"`
}

// Money configures the provider and limits the calls to it.
type Money struct {
	URL               string        `setting:"url" secret:"true" doc:"http:// or https:// base URL of the Money API; empty: none"`
	Timeout           time.Duration `setting:"timeout" default:"5s" min:"10ms" max:"10m" doc:"maximum wait for a Money API response; {bounds}"`
	MaxConcurrency    int           `setting:"max-concurrency" default:"2048" min:"1" max:"100000" doc:"maximum Money API calls in flight on this instance; {bounds}"`
	RatePerSecond     int           `setting:"rate-per-second" default:"0" min:"0" max:"1000000" doc:"maximum Money API calls per second of all instances together; 0: unlimited"`
	MaxRetries        int           `setting:"max-retries" default:"5" min:"0" max:"20" doc:"retries after the first call, unless the promotion sets its own; {bounds}"`
	SettleAfter       time.Duration `setting:"settle-after" default:"60s" min:"100ms" doc:"longest time that a sent charge may still take effect; {bounds}; only a later lookup can prove \"not charged\""`
	IdempotencyWindow time.Duration `setting:"idempotency-window" default:"24h" min:"100ms" doc:"time that the Money API remembers a key; {bounds}; older payouts are looked up before a charge"`
	GiveUpAfter       time.Duration `setting:"give-up-after" default:"24h" min:"100ms" doc:"time without a conclusive response after which lookups settle a payout; {bounds}"`
	RefusalCodes      []string      `setting:"refusal-codes" doc:"comma-separated Money API codes that mean a final refusal on any 4xx status"`
	Reasons           string        `setting:"reasons" doc:"what codes of the provider mean to people, who see it instead of the provider's message: one \"CODE: text\" per line"`
	Currencies        []string      `setting:"currencies" doc:"comma-separated currencies that the provider pays, such as EUR, XXX for points; promotions in others are refused; empty: any"`
	AuthHeader        string        `setting:"auth-header" secret:"true" doc:"\"Name: value\" header of each Money API call; with money.token-file, a bare name carries the token"`
	TokenFile         string        `setting:"token-file" doc:"file with one line, sent as Authorization: Bearer or in the header that money.auth-header names; reread every second"`
	ClientCert        string        `setting:"client-cert" doc:"PEM file of the client certificate for the Money API (mTLS); needs money.client-key; reread for each connection"`
	ClientKey         string        `setting:"client-key" doc:"PEM file of the private key of money.client-cert"`
	CAFile            string        `setting:"ca-file" doc:"PEM file of the CAs trusted for the Money API certificate; empty: system CAs"`
	Request           MoneyRequest  `setting:"request"`
	Response          MoneyResponse `setting:"response"`
	Lookup            MoneyLookup   `setting:"lookup"`
}

// MoneyRequest configures what is sent to a provider with an API of its own.
type MoneyRequest struct {
	Path              string `setting:"path" secret:"true" doc:"path of a charge below money.url, such as /v2/orders/{key}, at a provider with another API than the Money API; empty: the Money API"`
	Method            string `setting:"method" default:"POST" doc:"method of such a charge: POST or PUT"`
	Headers           string `setting:"headers" secret:"true" doc:"headers of such charges and lookups, one \"Name: value\" per line"`
	Key               string `setting:"key" default:"promotionId + \":\" + targetId" doc:"expression: the idempotency key of a payout at such a provider, in 1 to 200 characters"`
	Body              string `setting:"body" secret:"true" doc:"expression: the value that is sent as JSON, such as {\"externalId\": key, \"amount\": amount}"`
	Signature         string `setting:"signature" doc:"expression: the text to sign with HMAC-SHA256; empty: no signature"`
	SignatureKeyFile  string `setting:"signature-key-file" doc:"file with one line, the key of money.request.signature; reread every second"`
	SignatureEncoding string `setting:"signature-encoding" default:"hex" doc:"encoding of the signature: hex or base64"`
}

// MoneyResponse configures what the responses to a charge mean.
type MoneyResponse struct {
	Paid           string `setting:"paid" doc:"rule: which responses to a charge mean that it was made, now or before"`
	TransactionKey string `setting:"transaction-key" doc:"expression: the transaction in a response that money.response.paid matches"`
	Refused        string `setting:"refused" doc:"rule: which responses are a final refusal; empty: none"`
	Misconfigured  string `setting:"misconfigured" default:"status in [301, 302, 303, 307, 308, 401, 403, 404, 405, 407, 413, 415]" doc:"rule: which responses pause the promotion, because the settings are wrong and nothing was charged"`
	Throttled      string `setting:"throttled" default:"status == 429" doc:"rule: which responses ask for later calls, with nothing charged"`
	Code           string `setting:"code" doc:"expression: the code of an error; empty: the field code of the body"`
	Message        string `setting:"message" doc:"expression: the message of an error, for people; empty: the field message, detail or title of the body, or else the body"`
}

// MoneyLookup configures lookups, or what happens without them.
type MoneyLookup struct {
	Path           string `setting:"path" secret:"true" doc:"path and query of a lookup below money.url, such as /v2/orders?externalId={key}; empty: the provider has none"`
	Found          string `setting:"found" doc:"rule: which responses to a lookup mean that the charge was made"`
	TransactionKey string `setting:"transaction-key" doc:"expression: the transaction in a response that money.lookup.found matches"`
	NotFound       string `setting:"not-found" doc:"rule: which responses to a lookup mean that the charge was not made"`
	Without        string `setting:"without" doc:"without money.lookup.path it must be repeat: a charge without a conclusive response is repeated with the same key within money.idempotency-window, then waits for a person in UNKNOWN"`
}

// Approval configures which promotions and coupon templates a second person must approve.
type Approval struct {
	Above       int      `setting:"above" default:"0" min:"0" doc:"worth of a promotion, in minor units, above which another person must approve its targets; 0: never"`
	CodesAbove  int      `setting:"codes-above" default:"0" min:"0" max:"1000000000" doc:"quantity of a coupon template above which another person must approve it; at most 1000000000; 0: never"`
	AbovePerDay int      `setting:"above-per-day" default:"0" min:"0" doc:"worth of all promotions of one author that start within 24 hours, in minor units and per currency, above which another person must approve the next one; needs approval.above; 0: no limit"`
	Currencies  []string `setting:"currencies" doc:"comma-separated CODE:ABOVE or CODE:ABOVE:PER-DAY, such as KRW:1000000,EUR:50000:200000: what replaces approval.above and approval.above-per-day for a currency of ISO 4217, in its minor units; XXX: everything without a currency; needs approval.above"`
}

// String returns the settings as instances compare them.
func (a Approval) String() string {
	text := fmt.Sprintf("approval.above: %d, approval.above-per-day: %d, approval.codes-above: %d", a.Above, a.AbovePerDay, a.CodesAbove)
	if len(a.Currencies) > 0 {
		text += ", approval.currencies: " + strings.Join(slices.Sorted(slices.Values(a.Currencies)), ",")
	}
	return text
}

// Webhook configures webhooks. Without a Secret, those of a promotion's webhookUrl are
// not sent.
type Webhook struct {
	Secret       string `setting:"secret" secret:"true" doc:"key that signs webhooks to a promotion's webhookUrl (HMAC-SHA256); at most 1000 characters, at least 16 random ones advised; empty: a promotion can have none"`
	AllowPrivate bool   `setting:"allow-private" default:"false" doc:"send webhooks to private and loopback addresses, too; metadata addresses of clouds are always refused"`
}

// Notify configures messages to people, in Slack and by e-mail.
type Notify struct {
	SlackURL         string `setting:"slack-url" secret:"true" doc:"http:// or https:// URL of an incoming webhook of Slack, or of a system that takes the same messages; used for endpoints of kind SLACK without a URL, of which one is created if there is none; empty: none"`
	SMTPURL          string `setting:"smtp-url" secret:"true" doc:"smtp://user:password@host:587 or smtps://host URL of the mail server for endpoints of kind EMAIL; smtp uses STARTTLS if the server offers it, and never sends a password without; empty: none"`
	SMTPPasswordFile string `setting:"smtp-password-file" doc:"file with one line, the password for notify.smtp-url, which then must not have one; reread for each e-mail"`
	From             string `setting:"from" doc:"sender of e-mails, such as largesse@example.com; needed for notify.smtp-url"`
	ConsoleURL       string `setting:"console-url" doc:"http:// or https:// URL at which people open the console, for the links in messages; empty: no links"`
	TimeZone         string `setting:"time-zone" doc:"time zone of the times in messages, such as Asia/Seoul; empty: that of the process, which is often UTC"`
}

// Zone returns the time zone of messages, or nil if none is set.
func (n Notify) Zone() (*time.Location, error) {
	if n.TimeZone == "" {
		return nil, nil
	}
	return time.LoadLocation(n.TimeZone)
}

// Otel configures the export of traces. Without an Endpoint, there are none.
type Otel struct {
	Endpoint    string `setting:"endpoint" doc:"http:// or https:// base URL of an OTLP collector, which gets traces at /v1/traces; empty: no traces"`
	SampleOneIn int    `setting:"sample-one-in" default:"100" min:"0" max:"1000000000" doc:"traces one of so many requests and batches of records that have no sampled trace of their own; {bounds}; 0: none; 1: all"`
}

// Coupon configures the issuing of coupons.
type Coupon struct {
	ConsumerConcurrency     int           `setting:"consumer-concurrency" default:"10" min:"1" max:"1000" doc:"maximum concurrent transactions of this instance for KAFKA mode, and as many again during a Redis outage; {bounds}, below database.max-connections"`
	LockWait                time.Duration `setting:"lock-wait" default:"2s" min:"1ms" max:"1m" doc:"maximum wait for a template's lock in SYNC mode; {bounds}"`
	LockLease               time.Duration `setting:"lock-lease" default:"5s" min:"100ms" max:"10m" doc:"time after which the lock of a crashed holder expires; {bounds}"`
	AvailabilityTTL         time.Duration `setting:"availability-ttl" default:"30s" min:"0s" doc:"maximum time that SOLD_OUT and CLOSED are cached per user while the template is unchanged; 0s: not cached"`
	LapsedHolds             int           `setting:"lapsed-holds" default:"1" min:"0" max:"1000" doc:"holds that a user may let end without a confirmation; from then on, the user waits for as long as a hold lasts after each; {bounds}; 0: no limit"`
	FallbackAfter           time.Duration `setting:"fallback-after" default:"3s" min:"100ms" doc:"duration of a Redis outage after which coupons are issued through the database; {bounds}"`
	QueueTTL                time.Duration `setting:"queue-ttl" default:"24h" min:"1m" doc:"time after the last request when an unused template's Redis keys are removed; {bounds}; never while users wait"`
	AverageProcessingMillis int           `setting:"average-processing-millis" default:"0" min:"0" max:"3600000" doc:"milliseconds per user for wait estimates; {bounds}; 0: measured"`
}

// Reconcile configures the reconciliation of promotions and templates.
type Reconcile struct {
	Interval time.Duration `setting:"interval" default:"60s" min:"1s" doc:"interval between reconciliations of each promotion and coupon template; {bounds}"`
}

// Retention configures how long rows are stored. 0 means forever.
type Retention struct {
	Audit       time.Duration `setting:"audit" default:"0s" min:"1h" orzero:"true" doc:"time after which audit entries are removed; {bounds}; 0s: never"`
	DeadLetters time.Duration `setting:"dead-letters" default:"0s" min:"1h" orzero:"true" doc:"time after its replay or discard when a dead letter is removed; {bounds}; 0s: never; open ones stay"`
	Coupons     time.Duration `setting:"coupons" default:"0s" doc:"time after the closing time of a coupon template when it is archived and its coupons are removed, if none is valid any more; at least coupon.queue-ttl + 48h; 0s: never"`
	Payouts     time.Duration `setting:"payouts" default:"0s" doc:"time after the end of a promotion when it is archived and its payouts are removed; at least money.idempotency-window + money.settle-after; 0s: never"`
}

// HTTP configures the API server.
type HTTP struct {
	Listen           string   `setting:"listen" default:"127.0.0.1:8080" doc:"host:port of the API; loopback only while auth.mode is none; port 0: any free port"`
	TLSCert          string   `setting:"tls-cert" doc:"PEM file of the API's certificate chain; with http.tls-key, the API uses HTTPS; reread when it changes"`
	TLSKey           string   `setting:"tls-key" doc:"PEM file of the private key of http.tls-cert"`
	MaxConnections   int      `setting:"max-connections" default:"20000" min:"10" max:"1000000" doc:"maximum open connections to the API; {bounds}, within the open-file limit; if all are in use, idle ones are closed, and further clients wait"`
	MaxHeldAnswers   int      `setting:"max-held-answers" default:"16000" min:"1" max:"1000000" doc:"maximum open event streams and coupon requests with Prefer: wait; {bounds}; one API key holds at most half, and four fifths of all connections are the limit in any case"`
	ProbeListen      string   `setting:"probe-listen" doc:"host:port of /healthz, /readyz and /metrics; empty: http.listen; if set, /metrics is only there; port 0: any free port"`
	RateLimit        int      `setting:"rate-limit" default:"0" min:"0" max:"1000000" doc:"calls per second per caller (API key or token subject) on this instance, with bursts of twice as many; 0: unlimited"`
	RateLimitPerUser int      `setting:"rate-limit-per-user" default:"20" min:"0" max:"1000000" doc:"coupon requests per second per user on this instance, whichever caller sends them, and calls with a shopper's token; bursts of twice as many; 0: unlimited"`
	AllowedOrigins   []string `setting:"allowed-origins" doc:"comma-separated origins of web pages that may call the API, e.g. https://shop.example"`
	TrustedProxies   []string `setting:"trusted-proxies" doc:"comma-separated networks of proxies whose Forwarded or X-Forwarded-For header names the client and whose traceparent the trace, e.g. 10.0.0.0/8; an address is a network of one"`
}

// Console configures the pages that people see.
type Console struct {
	Languages []string `setting:"languages" default:"en,ko" doc:"comma-separated languages of the console and the customer's page, of en and ko; the first one is shown to browsers that prefer none of them"`
}

// Shop makes the customer's page look like the shop.
type Shop struct {
	Name        string `setting:"name" doc:"name of the shop, on the customer's page above the offer; at most 100 characters"`
	AccentColor string `setting:"accent-color" doc:"color of the buttons on the customer's page, like #1d55c7, with a contrast of at least 4.5 to white; empty: blue"`
	LogoFile    string `setting:"logo-file" doc:"PNG, JPEG, WebP or SVG file of at most 200 kB that the customer's page shows instead of shop.name; read at the start"`
	Footer      string `setting:"footer" doc:"text below the customer's page, for example who gives the coupons; at most 500 characters"`
}

// Auth configures how callers of the API authenticate.
type Auth struct {
	Mode string `setting:"mode" default:"none" words:"none,apikey,jwt" doc:"how callers authenticate: none (loopback only), apikey, or jwt (tokens and API keys)"`
	JWT  JWT    `setting:"jwt"`
}

// JWT configures which tokens are accepted, and which claims are read.
type JWT struct {
	JWKS      string `setting:"jwks" doc:"location of the token issuer's keys: an https:// URL (http:// on loopback) or a file"`
	Issuer    string `setting:"issuer" doc:"required value of a token's iss claim"`
	Audience  string `setting:"audience" doc:"value that a token's aud claim must contain"`
	UserClaim string `setting:"user-claim" default:"sub" doc:"claim that holds a shopper's user ID"`
	RoleClaim string `setting:"role-claim" default:"role" doc:"claim that holds the role: viewer, issuer, campaigner, approver, operator or admin; a token without it is a shopper's"`
}

// Log configures the log.
type Log struct {
	Level  string `setting:"level" default:"info" words:"debug,info,warn,error" doc:"minimum level of log lines: debug, info, warn or error"`
	Format string `setting:"format" default:"text" words:"text,json" doc:"format of log lines: text or json"`
}

// The roles of an instance.
const (
	RoleAPI          = "api"
	RoleIngest       = "ingest"
	RolePayout       = "payout"
	RoleIssuer       = "issuer"
	RoleHousekeeping = "housekeeping"
)

// Roles lists every role.
var Roles = []string{RoleAPI, RoleIngest, RolePayout, RoleIssuer, RoleHousekeeping}
