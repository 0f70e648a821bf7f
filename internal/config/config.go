// Package config holds the settings of an instance: Settings lists them, Load
// reads them from a YAML file, the environment and flags, and Validate checks
// each alone and against the others.
package config

import "time"

// Config is every setting of an instance. Default and Load make
// one; the zero Config is not valid. Names, defaults and meanings are listed
// in docs/settings.md. [RedisStreamConfig]
type Config struct {
	Data     Data     `koanf:"data"`
	Database Database `koanf:"database"`
	Redis    Redis    `koanf:"redis"`
	Kafka    Kafka    `koanf:"kafka"`
	Money    Money    `koanf:"money"`
	Approval Approval `koanf:"approval"`
	Webhook  Webhook  `koanf:"webhook"`
	Coupon   Coupon   `koanf:"coupon"`
	// Reconcile is the balance sheet.
	Reconcile Reconcile `koanf:"reconcile"`
	HTTP      HTTP      `koanf:"http"`
	Auth      Auth      `koanf:"auth"`
	Log       Log       `koanf:"log"`
	// Roles says which parts this instance runs.
	Roles []string `koanf:"roles"`

	// sources says where each value came from, by setting; what is missing is
	// a default.
	sources map[string]string
}

// Data is where the embedded engines keep what they keep.
type Data struct {
	Dir string `koanf:"dir"`
}

// Database names the database; an empty URL is SQLite in Data.Dir.
type Database struct {
	URL            string `koanf:"url"`
	MaxConnections int    `koanf:"max-connections"`
}

// Redis names the work queue's server; an empty URL is in process.
type Redis struct {
	// URL may hold several addresses of a cluster, separated by commas.
	URL       string `koanf:"url"`
	KeyPrefix string `koanf:"key-prefix"`
	Stream    Stream `koanf:"stream"`
}

// Stream bounds the work streams and the pools that read them.
// [RedisStreamProperties]
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

// PollInterval is the longest pause between two empty polls.
func (c Stream) PollInterval() time.Duration {
	return time.Duration(c.PollIntervalMs) * time.Millisecond
}

// IdleTimeout is how long a pool with nothing to do stays up.
func (c Stream) IdleTimeout() time.Duration {
	return time.Duration(c.IdleTimeoutSeconds) * time.Second
}

// Lease is how long an entry belongs to the consumer that read it.
func (c Stream) Lease() time.Duration {
	return time.Duration(c.LeaseSeconds) * time.Second
}

// Kafka names the brokers; none is the embedded broker.
type Kafka struct {
	Brokers        []string `koanf:"brokers"`
	EmbeddedListen string   `koanf:"embedded-listen"`
	TopicPrefix    string   `koanf:"topic-prefix"`
	// TLS encrypts what goes to the brokers. CAFile says who may sign their
	// certificates, ClientCert and ClientKey show them who we are. All are files
	// that may change while an instance runs, SASLPasswordFile too.
	TLS              bool   `koanf:"tls"`
	CAFile           string `koanf:"ca-file"`
	ClientCert       string `koanf:"client-cert"`
	ClientKey        string `koanf:"client-key"`
	SASLMechanism    string `koanf:"sasl-mechanism"`
	SASLUser         string `koanf:"sasl-user"`
	SASLPasswordFile string `koanf:"sasl-password-file"`
}

// Money names the provider that pays and bounds the calls to it.
type Money struct {
	URL               string        `koanf:"url"`
	Timeout           time.Duration `koanf:"timeout"`
	MaxConcurrency    int           `koanf:"max-concurrency"`
	RatePerSecond     int           `koanf:"rate-per-second"` // of all instances; 0 = no limit
	MaxRetries        int           `koanf:"max-retries"`
	SettleAfter       time.Duration `koanf:"settle-after"`
	IdempotencyWindow time.Duration `koanf:"idempotency-window"`
	GiveUpAfter       time.Duration `koanf:"give-up-after"`
	RefusalCodes      []string      `koanf:"refusal-codes"`
	// AuthHeader, TokenFile, ClientCert and ClientKey show the provider who we
	// are; CAFile says who may sign its certificate. All but the header are
	// files, which may change while an instance runs.
	AuthHeader string `koanf:"auth-header"`
	TokenFile  string `koanf:"token-file"`
	ClientCert string `koanf:"client-cert"`
	ClientKey  string `koanf:"client-key"`
	CAFile     string `koanf:"ca-file"`
}

// Approval says what needs a second person.
type Approval struct {
	// Above is the worth in minor units above which a promotion pays nothing
	// before somebody other than who made it has approved it; 0 = no bound.
	Above int `koanf:"above"`
}

// Webhook says how webhooks are signed; without a Secret there are none.
type Webhook struct {
	Secret string `koanf:"secret"`
}

// Coupon bounds the issuing of coupons.
type Coupon struct {
	// ConsumerConcurrency is how many transactions an instance has open at once
	// for requests from Kafka, and as many while Redis is away.
	ConsumerConcurrency int           `koanf:"consumer-concurrency"`
	LockWait            time.Duration `koanf:"lock-wait"`
	LockLease           time.Duration `koanf:"lock-lease"`
	AvailabilityTTL     time.Duration `koanf:"availability-ttl"`
	FallbackAfter       time.Duration `koanf:"fallback-after"`
	QueueTTL            time.Duration `koanf:"queue-ttl"`
	// AverageProcessingMillis is the time per person that waiting times go by;
	// 0 = as measured.
	AverageProcessingMillis int `koanf:"average-processing-millis"`
}

// Reconcile says how often the books are checked.
type Reconcile struct {
	Interval time.Duration `koanf:"interval"`
}

// HTTP is where the API listens.
type HTTP struct {
	Listen string `koanf:"listen"`
	// TLSCert and TLSKey make it HTTPS. They are files, which may change while
	// an instance runs.
	TLSCert string `koanf:"tls-cert"`
	TLSKey  string `koanf:"tls-key"`
	// MaxConnections is how many connections may be open; who comes then waits.
	MaxConnections int `koanf:"max-connections"`
	// RateLimit is how many calls a second each caller has on an instance,
	// RateLimitPerUser how many requests for coupons each user; 0 = no limit.
	RateLimit        int `koanf:"rate-limit"`
	RateLimitPerUser int `koanf:"rate-limit-per-user"`
	// AllowedOrigins are those of web pages that may call from a browser.
	AllowedOrigins []string `koanf:"allowed-origins"`
}

// Auth says how callers of the API prove who they are.
type Auth struct {
	Mode string `koanf:"mode"` // none, apikey, or jwt: tokens and API keys
	JWT  JWT    `koanf:"jwt"`
}

// JWT says whose tokens count, and what is read out of them.
type JWT struct {
	JWKS      string `koanf:"jwks"`
	Issuer    string `koanf:"issuer"`
	Audience  string `koanf:"audience"`
	UserClaim string `koanf:"user-claim"`
	RoleClaim string `koanf:"role-claim"`
}

// Log says how much is logged, and in which form.
type Log struct {
	Level  string `koanf:"level"`
	Format string `koanf:"format"`
}

// The parts an instance can run.
const (
	RoleAPI          = "api"
	RoleIngest       = "ingest"
	RolePayout       = "payout"
	RoleIssuer       = "issuer"
	RoleHousekeeping = "housekeeping"
)

// Roles lists every role.
var Roles = []string{RoleAPI, RoleIngest, RolePayout, RoleIssuer, RoleHousekeeping}
