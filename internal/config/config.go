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
	Data      Data      `koanf:"data"`
	Database  Database  `koanf:"database"`
	Redis     Redis     `koanf:"redis"`
	Kafka     Kafka     `koanf:"kafka"`
	Money     Money     `koanf:"money"`
	Approval  Approval  `koanf:"approval"`
	Webhook   Webhook   `koanf:"webhook"`
	Coupon    Coupon    `koanf:"coupon"`
	Reconcile Reconcile `koanf:"reconcile"`
	Retention Retention `koanf:"retention"`
	HTTP      HTTP      `koanf:"http"`
	Auth      Auth      `koanf:"auth"`
	Log       Log       `koanf:"log"`
	Otel      Otel      `koanf:"otel"`
	// Roles lists the roles that this instance runs.
	Roles []string `koanf:"roles"`

	// sources maps settings to the source of their value. A missing setting has
	// its default.
	sources map[string]string
}

// Data configures the data of the embedded engines.
type Data struct {
	Dir string `koanf:"dir"`
}

// Database configures the database. With an empty URL, it is SQLite in Data.Dir.
type Database struct {
	URL string `koanf:"url"`
	// PasswordFile may change while the instance runs.
	PasswordFile   string `koanf:"password-file"`
	MaxConnections int    `koanf:"max-connections"`
	// ReadConnections is the number of further connections for reads through the
	// API. SQLite has as many.
	ReadConnections int `koanf:"read-connections"`
}

// Redis configures the work queue and the gate. With an empty URL, they run in this
// process.
type Redis struct {
	// URL may contain the URLs of several Cluster nodes, separated by commas.
	URL string `koanf:"url"`
	// PasswordFile may change while the instance runs.
	PasswordFile string `koanf:"password-file"`
	// CAFile contains the CAs trusted for the certificates of the servers. It may
	// change while the instance runs.
	CAFile    string `koanf:"ca-file"`
	KeyPrefix string `koanf:"key-prefix"`
	Stream    Stream `koanf:"stream"`
}

// Stream limits the streams of promotions and the pools that read them.
type Stream struct {
	Enabled                bool `koanf:"enabled"`
	MaxLen                 int  `koanf:"max-len"`
	PollIntervalMs         int  `koanf:"poll-interval-ms"`
	IdleTimeoutSeconds     int  `koanf:"idle-timeout-seconds"`
	BatchSize              int  `koanf:"batch-size"`
	MinConsumerPerInstance int  `koanf:"min-consumer-per-instance"`
	MaxConsumerPerInstance int  `koanf:"max-consumer-per-instance"`
	InFlightPerConsumer    int  `koanf:"in-flight-per-consumer"`
	LeaseSeconds           int  `koanf:"lease-seconds"`
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
	Brokers        []string `koanf:"brokers"`
	EmbeddedListen string   `koanf:"embedded-listen"`
	TopicPrefix    string   `koanf:"topic-prefix"`
	// TLS encrypts the connections to the brokers. CAFile contains the CAs trusted
	// for their certificates. ClientCert and ClientKey authenticate this instance.
	// These files and SASLPasswordFile may change while the instance runs.
	TLS              bool   `koanf:"tls"`
	CAFile           string `koanf:"ca-file"`
	ClientCert       string `koanf:"client-cert"`
	ClientKey        string `koanf:"client-key"`
	SASLMechanism    string `koanf:"sasl-mechanism"`
	SASLUser         string `koanf:"sasl-user"`
	SASLPasswordFile string `koanf:"sasl-password-file"`
}

// Money configures the provider and limits the calls to it.
type Money struct {
	URL               string        `koanf:"url"`
	Timeout           time.Duration `koanf:"timeout"`
	MaxConcurrency    int           `koanf:"max-concurrency"`
	RatePerSecond     int           `koanf:"rate-per-second"` // of all instances together; 0: unlimited
	MaxRetries        int           `koanf:"max-retries"`
	SettleAfter       time.Duration `koanf:"settle-after"`
	IdempotencyWindow time.Duration `koanf:"idempotency-window"`
	GiveUpAfter       time.Duration `koanf:"give-up-after"`
	RefusalCodes      []string      `koanf:"refusal-codes"`
	Currencies        []string      `koanf:"currencies"` // that the provider pays; empty: any
	// AuthHeader, TokenFile, ClientCert and ClientKey authenticate this instance at
	// the provider. CAFile contains the CAs trusted for its certificate. The files
	// may change while the instance runs.
	AuthHeader string `koanf:"auth-header"`
	TokenFile  string `koanf:"token-file"`
	ClientCert string `koanf:"client-cert"`
	ClientKey  string `koanf:"client-key"`
	CAFile     string `koanf:"ca-file"`
	// Request, Response and Lookup describe an API other than the Money API. They
	// have no effect without Request.Path.
	Request  MoneyRequest  `koanf:"request"`
	Response MoneyResponse `koanf:"response"`
	Lookup   MoneyLookup   `koanf:"lookup"`
}

// MoneyRequest configures what is sent to a provider with an API of its own.
type MoneyRequest struct {
	Path              string `koanf:"path"`
	Method            string `koanf:"method"`
	Headers           string `koanf:"headers"`
	Key               string `koanf:"key"`
	Body              string `koanf:"body"`
	Signature         string `koanf:"signature"`
	SignatureKeyFile  string `koanf:"signature-key-file"`
	SignatureEncoding string `koanf:"signature-encoding"`
}

// MoneyResponse configures what the responses to a charge mean.
type MoneyResponse struct {
	Paid           string `koanf:"paid"`
	TransactionKey string `koanf:"transaction-key"`
	Refused        string `koanf:"refused"`
	Misconfigured  string `koanf:"misconfigured"`
	Throttled      string `koanf:"throttled"`
	Code           string `koanf:"code"`
	Message        string `koanf:"message"`
}

// MoneyLookup configures lookups, or what happens without them.
type MoneyLookup struct {
	Path           string `koanf:"path"`
	Found          string `koanf:"found"`
	TransactionKey string `koanf:"transaction-key"`
	NotFound       string `koanf:"not-found"`
	Without        string `koanf:"without"`
}

// Approval configures which promotions and coupon templates a second person must approve.
type Approval struct {
	// Above is the value of a promotion, in minor units, above which it pays
	// nothing until a person other than its creator has approved it. 0 means never.
	Above int `koanf:"above"`
	// CodesAbove is the number of coupons of a template above which its quantity waits
	// until a person who is not one of its authors has approved it. 0 means never.
	CodesAbove int `koanf:"codes-above"`
	// AbovePerDay is the value of all promotions of an author that start within 24 hours,
	// in minor units, above which another person must approve them. 0 means no limit.
	AbovePerDay int `koanf:"above-per-day"`
	// Currencies have, as CODE:ABOVE or CODE:ABOVE:PER-DAY, what replaces Above and
	// AbovePerDay for a currency; see Limits.
	Currencies []string `koanf:"currencies"`
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
	Secret string `koanf:"secret"`
	// AllowPrivate allows receivers whose address is not public.
	AllowPrivate bool `koanf:"allow-private"`
}

// Otel configures the export of traces. Without an Endpoint, there are none.
type Otel struct {
	Endpoint    string `koanf:"endpoint"`
	SampleOneIn int    `koanf:"sample-one-in"`
}

// Coupon configures the issuing of coupons.
type Coupon struct {
	// ConsumerConcurrency is the maximum number of concurrent transactions for
	// requests from Kafka, and of as many again during a Redis outage.
	ConsumerConcurrency int           `koanf:"consumer-concurrency"`
	LockWait            time.Duration `koanf:"lock-wait"`
	LockLease           time.Duration `koanf:"lock-lease"`
	AvailabilityTTL     time.Duration `koanf:"availability-ttl"`
	// LapsedHolds is how many holds a user may let end without a confirmation, before
	// the user waits after each. 0 means no limit.
	LapsedHolds   int           `koanf:"lapsed-holds"`
	FallbackAfter time.Duration `koanf:"fallback-after"`
	QueueTTL      time.Duration `koanf:"queue-ttl"`
	// AverageProcessingMillis is the time per user for wait estimates. 0 means the
	// measured time.
	AverageProcessingMillis int `koanf:"average-processing-millis"`
}

// Reconcile configures the reconciliation of promotions and templates.
type Reconcile struct {
	Interval time.Duration `koanf:"interval"`
}

// Retention configures how long rows are stored. 0 means forever.
type Retention struct {
	Audit       time.Duration `koanf:"audit"`
	DeadLetters time.Duration `koanf:"dead-letters"` // from the replay or discard on
	Payouts     time.Duration `koanf:"payouts"`      // from the end of the promotion on
	Coupons     time.Duration `koanf:"coupons"`      // from the closing time of the template on
}

// HTTP configures the API server.
type HTTP struct {
	Listen string `koanf:"listen"`
	// TLSCert and TLSKey are the files for HTTPS. They may change while the
	// instance runs.
	TLSCert string `koanf:"tls-cert"`
	TLSKey  string `koanf:"tls-key"`
	// MaxConnections is the maximum number of open connections. Further clients wait.
	MaxConnections int `koanf:"max-connections"`
	// MaxHeldAnswers is the maximum number of event streams and waiting coupon requests.
	MaxHeldAnswers int `koanf:"max-held-answers"`
	// ProbeListen is the address of /healthz, /readyz and /metrics. Empty means Listen.
	ProbeListen string `koanf:"probe-listen"`
	// RateLimit limits the calls per second of each caller on an instance, and
	// RateLimitPerUser the coupon requests of each user, and calls with their token. 0 means unlimited.
	RateLimit        int `koanf:"rate-limit"`
	RateLimitPerUser int `koanf:"rate-limit-per-user"`
	// AllowedOrigins lists the origins of web pages that may call the API.
	AllowedOrigins []string `koanf:"allowed-origins"`
	// TrustedProxies lists the networks (CIDR) of proxies that name the client of a
	// request in Forwarded or X-Forwarded-For, and its trace in traceparent.
	TrustedProxies []string `koanf:"trusted-proxies"`
}

// Auth configures how callers of the API authenticate.
type Auth struct {
	Mode string `koanf:"mode"` // none, apikey, or jwt: tokens and API keys
	JWT  JWT    `koanf:"jwt"`
}

// JWT configures which tokens are accepted, and which claims are read.
type JWT struct {
	JWKS      string `koanf:"jwks"`
	Issuer    string `koanf:"issuer"`
	Audience  string `koanf:"audience"`
	UserClaim string `koanf:"user-claim"`
	RoleClaim string `koanf:"role-claim"`
}

// Log configures the log.
type Log struct {
	Level  string `koanf:"level"`
	Format string `koanf:"format"`
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
