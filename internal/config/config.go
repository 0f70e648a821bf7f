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
	Coupon    Coupon    `setting:"coupon"`
	Reconcile Reconcile `setting:"reconcile"`
	Retention Retention `setting:"retention"`
	HTTP      HTTP      `setting:"http"`
	Auth      Auth      `setting:"auth"`
	Log       Log       `setting:"log"`
	Otel      Otel      `setting:"otel"`
	// Roles lists the roles that this instance runs.
	Roles []string `setting:"roles"`

	// sources maps settings to the source of their value. A missing setting has
	// its default.
	sources map[string]string
}

// Data configures the data of the embedded engines.
type Data struct {
	Dir string `setting:"dir"`
}

// Database configures the database. With an empty URL, it is SQLite in Data.Dir.
type Database struct {
	URL string `setting:"url"`
	// PasswordFile may change while the instance runs.
	PasswordFile   string `setting:"password-file"`
	MaxConnections int    `setting:"max-connections"`
	// ReadConnections is the number of further connections for reads through the
	// API. SQLite has as many.
	ReadConnections int `setting:"read-connections"`
}

// Redis configures the work queue and the gate. With an empty URL, they run in this
// process.
type Redis struct {
	// URL may contain the URLs of several Cluster nodes, separated by commas.
	URL string `setting:"url"`
	// PasswordFile may change while the instance runs.
	PasswordFile string `setting:"password-file"`
	// CAFile contains the CAs trusted for the certificates of the servers. It may
	// change while the instance runs.
	CAFile    string `setting:"ca-file"`
	KeyPrefix string `setting:"key-prefix"`
	Stream    Stream `setting:"stream"`
}

// Stream limits the streams of promotions and the pools that read them.
type Stream struct {
	Enabled                bool `setting:"enabled"`
	MaxLen                 int  `setting:"max-len"`
	PollIntervalMs         int  `setting:"poll-interval-ms"`
	IdleTimeoutSeconds     int  `setting:"idle-timeout-seconds"`
	BatchSize              int  `setting:"batch-size"`
	MinConsumerPerInstance int  `setting:"min-consumer-per-instance"`
	MaxConsumerPerInstance int  `setting:"max-consumer-per-instance"`
	InFlightPerConsumer    int  `setting:"in-flight-per-consumer"`
	LeaseSeconds           int  `setting:"lease-seconds"`
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
	Brokers        []string `setting:"brokers"`
	EmbeddedListen string   `setting:"embedded-listen"`
	TopicPrefix    string   `setting:"topic-prefix"`
	// TLS encrypts the connections to the brokers. CAFile contains the CAs trusted
	// for their certificates. ClientCert and ClientKey authenticate this instance.
	// These files and SASLPasswordFile may change while the instance runs.
	TLS              bool   `setting:"tls"`
	CAFile           string `setting:"ca-file"`
	ClientCert       string `setting:"client-cert"`
	ClientKey        string `setting:"client-key"`
	SASLMechanism    string `setting:"sasl-mechanism"`
	SASLUser         string `setting:"sasl-user"`
	SASLPasswordFile string `setting:"sasl-password-file"`
}

// Money configures the provider and limits the calls to it.
type Money struct {
	URL               string        `setting:"url"`
	Timeout           time.Duration `setting:"timeout"`
	MaxConcurrency    int           `setting:"max-concurrency"`
	RatePerSecond     int           `setting:"rate-per-second"` // of all instances together; 0: unlimited
	MaxRetries        int           `setting:"max-retries"`
	SettleAfter       time.Duration `setting:"settle-after"`
	IdempotencyWindow time.Duration `setting:"idempotency-window"`
	GiveUpAfter       time.Duration `setting:"give-up-after"`
	RefusalCodes      []string      `setting:"refusal-codes"`
	Currencies        []string      `setting:"currencies"` // that the provider pays; empty: any
	// AuthHeader, TokenFile, ClientCert and ClientKey authenticate this instance at
	// the provider. CAFile contains the CAs trusted for its certificate. The files
	// may change while the instance runs.
	AuthHeader string `setting:"auth-header"`
	TokenFile  string `setting:"token-file"`
	ClientCert string `setting:"client-cert"`
	ClientKey  string `setting:"client-key"`
	CAFile     string `setting:"ca-file"`
	// Request, Response and Lookup describe an API other than the Money API. They
	// have no effect without Request.Path.
	Request  MoneyRequest  `setting:"request"`
	Response MoneyResponse `setting:"response"`
	Lookup   MoneyLookup   `setting:"lookup"`
}

// MoneyRequest configures what is sent to a provider with an API of its own.
type MoneyRequest struct {
	Path              string `setting:"path"`
	Method            string `setting:"method"`
	Headers           string `setting:"headers"`
	Key               string `setting:"key"`
	Body              string `setting:"body"`
	Signature         string `setting:"signature"`
	SignatureKeyFile  string `setting:"signature-key-file"`
	SignatureEncoding string `setting:"signature-encoding"`
}

// MoneyResponse configures what the responses to a charge mean.
type MoneyResponse struct {
	Paid           string `setting:"paid"`
	TransactionKey string `setting:"transaction-key"`
	Refused        string `setting:"refused"`
	Misconfigured  string `setting:"misconfigured"`
	Throttled      string `setting:"throttled"`
	Code           string `setting:"code"`
	Message        string `setting:"message"`
}

// MoneyLookup configures lookups, or what happens without them.
type MoneyLookup struct {
	Path           string `setting:"path"`
	Found          string `setting:"found"`
	TransactionKey string `setting:"transaction-key"`
	NotFound       string `setting:"not-found"`
	Without        string `setting:"without"`
}

// Approval configures which promotions and coupon templates a second person must approve.
type Approval struct {
	// Above is the value of a promotion, in minor units, above which it pays
	// nothing until a person other than its creator has approved it. 0 means never.
	Above int `setting:"above"`
	// CodesAbove is the number of coupons of a template above which its quantity waits
	// until a person who is not one of its authors has approved it. 0 means never.
	CodesAbove int `setting:"codes-above"`
	// AbovePerDay is the value of all promotions of an author that start within 24 hours,
	// in minor units, above which another person must approve them. 0 means no limit.
	AbovePerDay int `setting:"above-per-day"`
	// Currencies have, as CODE:ABOVE or CODE:ABOVE:PER-DAY, what replaces Above and
	// AbovePerDay for a currency; see Limits.
	Currencies []string `setting:"currencies"`
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
	Secret string `setting:"secret"`
	// AllowPrivate allows receivers whose address is not public.
	AllowPrivate bool `setting:"allow-private"`
}

// Otel configures the export of traces. Without an Endpoint, there are none.
type Otel struct {
	Endpoint    string `setting:"endpoint"`
	SampleOneIn int    `setting:"sample-one-in"`
}

// Coupon configures the issuing of coupons.
type Coupon struct {
	// ConsumerConcurrency is the maximum number of concurrent transactions for
	// requests from Kafka, and of as many again during a Redis outage.
	ConsumerConcurrency int           `setting:"consumer-concurrency"`
	LockWait            time.Duration `setting:"lock-wait"`
	LockLease           time.Duration `setting:"lock-lease"`
	AvailabilityTTL     time.Duration `setting:"availability-ttl"`
	// LapsedHolds is how many holds a user may let end without a confirmation, before
	// the user waits after each. 0 means no limit.
	LapsedHolds   int           `setting:"lapsed-holds"`
	FallbackAfter time.Duration `setting:"fallback-after"`
	QueueTTL      time.Duration `setting:"queue-ttl"`
	// AverageProcessingMillis is the time per user for wait estimates. 0 means the
	// measured time.
	AverageProcessingMillis int `setting:"average-processing-millis"`
}

// Reconcile configures the reconciliation of promotions and templates.
type Reconcile struct {
	Interval time.Duration `setting:"interval"`
}

// Retention configures how long rows are stored. 0 means forever.
type Retention struct {
	Audit       time.Duration `setting:"audit"`
	DeadLetters time.Duration `setting:"dead-letters"` // from the replay or discard on
	Payouts     time.Duration `setting:"payouts"`      // from the end of the promotion on
	Coupons     time.Duration `setting:"coupons"`      // from the closing time of the template on
}

// HTTP configures the API server.
type HTTP struct {
	Listen string `setting:"listen"`
	// TLSCert and TLSKey are the files for HTTPS. They may change while the
	// instance runs.
	TLSCert string `setting:"tls-cert"`
	TLSKey  string `setting:"tls-key"`
	// MaxConnections is the maximum number of open connections. Further clients wait.
	MaxConnections int `setting:"max-connections"`
	// MaxHeldAnswers is the maximum number of event streams and waiting coupon requests.
	MaxHeldAnswers int `setting:"max-held-answers"`
	// ProbeListen is the address of /healthz, /readyz and /metrics. Empty means Listen.
	ProbeListen string `setting:"probe-listen"`
	// RateLimit limits the calls per second of each caller on an instance, and
	// RateLimitPerUser the coupon requests of each user, and calls with their token. 0 means unlimited.
	RateLimit        int `setting:"rate-limit"`
	RateLimitPerUser int `setting:"rate-limit-per-user"`
	// AllowedOrigins lists the origins of web pages that may call the API.
	AllowedOrigins []string `setting:"allowed-origins"`
	// TrustedProxies lists the networks (CIDR) of proxies that name the client of a
	// request in Forwarded or X-Forwarded-For, and its trace in traceparent.
	TrustedProxies []string `setting:"trusted-proxies"`
}

// Auth configures how callers of the API authenticate.
type Auth struct {
	Mode string `setting:"mode"` // none, apikey, or jwt: tokens and API keys
	JWT  JWT    `setting:"jwt"`
}

// JWT configures which tokens are accepted, and which claims are read.
type JWT struct {
	JWKS      string `setting:"jwks"`
	Issuer    string `setting:"issuer"`
	Audience  string `setting:"audience"`
	UserClaim string `setting:"user-claim"`
	RoleClaim string `setting:"role-claim"`
}

// Log configures the log.
type Log struct {
	Level  string `setting:"level"`
	Format string `setting:"format"`
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
