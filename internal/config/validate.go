package config

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/webhook"
)

const (
	webhookSecretGood = 16 // characters; a shorter one can be guessed
	webhookSecretMax  = 1000
)

const resolveTimeout = 3 * time.Second // of the host of a listen address

// Validate checks every setting, alone and against the others. The error is an
// *Error with all problems.
func (c Config) Validate() error {
	v := validation{config: c, resolve: net.DefaultResolver.LookupIPAddr}
	v.run()
	if len(v.problems) > 0 {
		return &Error{Problems: v.problems}
	}
	return nil
}

type validation struct {
	config   Config
	resolve  func(ctx context.Context, host string) ([]net.IPAddr, error)
	problems []Problem
}

var (
	redisPrefix = regexp.MustCompile(`^[A-Za-z0-9._:-]{0,64}$`)
	topicPrefix = regexp.MustCompile(`^[A-Za-z0-9._-]{0,64}$`)
	refusalCode = regexp.MustCompile(`^[!-~]{1,100}$`)
)

func (v *validation) run() {
	c := v.config
	for _, s := range Settings {
		if wrong := s.check(c.value(s.Name)); wrong != "" {
			v.wrong(s.Name, wrong)
		}
	}
	if strings.TrimSpace(c.Data.Dir) == "" {
		v.wrong("data.dir", "must name a directory")
	}
	v.url("database.url", c.Database.URL, "postgres", "postgresql")
	if c.Redis.URL != "" {
		for address := range strings.SplitSeq(c.Redis.URL, ",") {
			if !v.url("redis.url", address, "redis", "rediss") {
				break
			}
		}
	}
	v.passwordFile("database.password-file", c.Database.PasswordFile, "database.url", c.Database.URL)
	v.passwordFile("redis.password-file", c.Redis.PasswordFile, "redis.url", c.Redis.URL)
	v.redisCA(c.Redis)
	if !redisPrefix.MatchString(c.Redis.KeyPrefix) {
		v.wrong("redis.key-prefix", "must be at most 64 letters, digits and . _ : - (braces would move all keys to one Cluster slot)")
	}
	v.stream(c.Redis.Stream)
	v.kafka(c.Kafka)
	v.kafkaSecurity(c.Kafka)
	v.money(c.Money)
	v.controls(c)
	v.notify(c.Notify)
	if c.Coupon.ConsumerConcurrency >= c.Database.MaxConnections && v.good("coupon.consumer-concurrency") {
		v.wrong("coupon.consumer-concurrency", fmt.Sprintf("must be below database.max-connections, which is %d: other parts of the instance also need connections", c.Database.MaxConnections))
	}
	if floor := c.Money.IdempotencyWindow + c.Money.SettleAfter; c.Retention.Payouts != 0 && c.Retention.Payouts < floor {
		v.wrong("retention.payouts", fmt.Sprintf("must be at least %s (money.idempotency-window + money.settle-after): a charge may still be confirmed until then", ShortDuration(floor)))
	}
	// A closed template keeps its gate for coupon.queue-ttl + 24h, by the clocks of the instances.
	if floor := c.Coupon.QueueTTL + 48*time.Hour; c.Retention.Coupons != 0 && c.Retention.Coupons < floor {
		v.wrong("retention.coupons", fmt.Sprintf("must be at least %s (coupon.queue-ttl + 48h): users may wait in line until then", ShortDuration(floor)))
	}
	v.http(c)
	v.pages(c)
	if len(c.Roles) == 0 {
		v.wrong("roles", "must name at least one of "+strings.Join(Roles, ", "))
	}
	for i, role := range c.Roles {
		switch {
		case !slices.Contains(Roles, role):
			v.wrong("roles", fmt.Sprintf("has the unknown role %q; the roles are %s", role, strings.Join(Roles, ", ")))
		case slices.Contains(c.Roles[:i], role):
			v.wrong("roles", fmt.Sprintf("names the role %q twice; keep one", role))
		}
	}
}

// passwordFile checks a file with the password for the servers that another setting names.
func (v *validation) passwordFile(name, file, of, urls string) {
	switch _, err := service.ReadPassword(file); {
	case file == "":
	case urls == "":
		v.wrong(name, "has no effect without "+of+": set that, or remove this setting")
	case hasPassword(urls):
		v.wrong(of, "must not have a password, because "+name+" is set: keep one of them")
	case err != nil:
		v.wrong(name, err.Error())
	}
}

func (v *validation) redisCA(c Redis) {
	switch _, err := (service.TLSFiles{CA: c.CAFile}).Roots(); {
	case c.CAFile == "":
	case !strings.HasPrefix(strings.TrimSpace(c.URL), "rediss://"):
		v.wrong("redis.ca-file", "has no effect without TLS: begin redis.url with rediss://, or remove this setting")
	case err != nil:
		v.wrong("redis.ca-file", err.Error())
	}
}

func hasPassword(urls string) bool {
	for text := range strings.SplitSeq(urls, ",") {
		if u, err := url.Parse(strings.TrimSpace(text)); err == nil {
			if _, set := u.User.Password(); set || u.Query().Has("password") {
				return true
			}
		}
	}
	return false
}

func (v *validation) stream(c Stream) {
	if c.MinConsumerPerInstance > c.MaxConsumerPerInstance {
		v.wrong("redis.stream.min-consumer-per-instance", fmt.Sprintf("must not be above redis.stream.max-consumer-per-instance, which is %d", c.MaxConsumerPerInstance))
	}
	if c.Lease() <= v.config.Money.Timeout && v.good("redis.stream.lease-seconds") {
		v.wrong("redis.stream.lease-seconds", fmt.Sprintf("must be above money.timeout, which is %s, because a call must end before the lease of its entry", ShortDuration(v.config.Money.Timeout)))
	}
}

func (v *validation) kafka(c Kafka) {
	for _, broker := range c.Brokers {
		if _, port, ok := HostPort(broker); !ok || port == 0 {
			v.wrong("kafka.brokers", fmt.Sprintf("has %q; each broker must be host:port", broker))
		}
	}
	if !topicPrefix.MatchString(c.TopicPrefix) {
		v.wrong("kafka.topic-prefix", "must be at most 64 letters, digits and . _ -")
	}
	if len(c.Brokers) > 0 {
		return
	}
	v.listen("kafka.embedded-listen", c.EmbeddedListen, "the embedded broker does not encrypt its connections")
	if s, _ := settingByName("kafka.embedded-listen"); v.config.Auth.Mode != auth.ModeNone && c.SASLMechanism == "" && c.EmbeddedListen != s.Default {
		v.wrong("kafka.embedded-listen", "would let every process of this machine publish payouts without an API key: set kafka.sasl-mechanism, kafka.sasl-user and kafka.sasl-password-file, or remove this setting")
	}
}

func (v *validation) kafkaSecurity(c Kafka) {
	files, login := []string{"kafka.ca-file", "kafka.client-cert", "kafka.client-key"}, []string{"kafka.sasl-user", "kafka.sasl-password-file"}
	switch tls := c.TLSFiles(); {
	case len(c.Brokers) == 0:
		v.unset("applies only to kafka.brokers, which is empty: remove this setting, or set kafka.brokers", slices.Concat([]string{"kafka.tls"}, files)...)
	case tls == nil:
		v.unset("has no effect without kafka.tls: set that to true, or remove this setting", files...)
	default:
		_, err := tls.Roots()
		v.usable("kafka.ca-file", err)
		if v.together("kafka.client-cert", "kafka.client-key") {
			_, err = tls.Certificates()
			v.usable("kafka.client-cert", err)
		}
	}
	if c.SASLMechanism == "" {
		v.unset("has no effect without kafka.sasl-mechanism: set that too, or remove this setting", login...)
		return
	}
	mechanisms := bus.SASLMechanisms
	if len(c.Brokers) == 0 {
		mechanisms = bus.BrokerMechanisms
	}
	if !slices.Contains(mechanisms, c.SASLMechanism) {
		v.wrong("kafka.sasl-mechanism", "must be one of "+strings.Join(mechanisms, ", "))
	}
	for _, name := range login {
		if v.config.Text(name) == "" {
			v.wrong(name, "is missing, but kafka.sasl-mechanism needs it")
		}
	}
	if c.SASLPasswordFile != "" {
		v.usable("kafka.sasl-password-file", c.SASL().CheckPassword())
	}
}

// unset adds a problem for each of the settings that does not have its default.
func (v *validation) unset(why string, names ...string) {
	for _, name := range names {
		if s, _ := settingByName(name); v.config.Text(name) != s.Default {
			v.wrong(name, why)
		}
	}
}

func (v *validation) money(c Money) {
	v.url("money.url", c.URL, "http", "https")
	if u, err := url.Parse(c.URL); err == nil && (u.RawQuery != "" || u.Fragment != "") {
		v.wrong("money.url", "must not contain a query (?) or a fragment (#)")
	}
	for _, code := range c.RefusalCodes {
		if !refusalCode.MatchString(code) {
			v.wrong("money.refusal-codes", fmt.Sprintf("has %q; a code is 1 to 100 visible ASCII characters", code))
		}
	}
	_, err := money.ParseReasons(c.Reasons)
	v.usable("money.reasons", err)
	v.usable("money.auth-header", c.Credentials().CheckHeader())
	v.together("money.client-cert", "money.client-key")
	for i, code := range c.Currencies {
		switch {
		case !reward.IsCurrency(code):
			v.wrong("money.currencies", fmt.Sprintf("has %q; a currency is three capital letters, e.g. EUR", code))
		case slices.Contains(c.Currencies[:i], code):
			v.wrong("money.currencies", "has "+code+" twice")
		}
	}
	v.customMoney(c)
}

func (v *validation) customMoney(c Money) {
	if custom := c.Custom(); custom != (money.Custom{}) {
		payable, problems := money.CheckCustom(custom)
		for _, problem := range problems {
			v.wrong(problem.Setting, problem.Detail)
		}
		if n := len(c.Currencies); payable.SameCurrency && n > 1 {
			v.wrong("money.currencies", fmt.Sprintf("has %d currencies, but money.request.body does not name currency, so all would be paid as the same one", n))
		}
		v.unset("has no effect with money.request.path: write the codes into money.response.refused", "money.refusal-codes")
		return
	}
	for _, s := range Settings {
		if strings.HasPrefix(s.Name, "money.") && strings.Count(s.Name, ".") == 2 { // request, response and lookup
			v.unset("has no effect without money.request.path: set that, or remove this setting", s.Name)
		}
	}
}

func (v *validation) controls(c Config) {
	if c.Approval.AbovePerDay > 0 && c.Approval.Above <= 0 {
		v.wrong("approval.above-per-day", "needs approval.above")
	}
	_, _, err := c.Approval.Limits()
	v.usable("approval.currencies", err)
	if v.url("otel.endpoint", c.Otel.Endpoint, "http", "https") {
		if u, err := url.Parse(c.Otel.Endpoint); err == nil && (u.RawQuery != "" || u.Fragment != "" || u.User != nil) {
			v.wrong("otel.endpoint", "must not have a user, a query or a fragment: let a collector on your side add what its backend asks for")
		}
	}
	if utf8.RuneCountInString(c.Webhook.Secret) > webhookSecretMax {
		v.wrong("webhook.secret", fmt.Sprintf("must have at most %d characters", webhookSecretMax))
	}
}

func (v *validation) notify(c Notify) {
	if c.SlackURL != "" {
		v.usable("notify.slack-url", webhook.CheckURL(c.SlackURL))
	}
	_, err := c.MailServer()
	v.usable("notify.smtp-url", err)
	if _, err := c.Zone(); err != nil {
		v.wrong("notify.time-zone", "must be a name of the time zone database, such as Asia/Seoul")
	}
	v.passwordFile("notify.smtp-password-file", c.SMTPPasswordFile, "notify.smtp-url", c.SMTPURL)
	if c.SMTPURL == "" {
		v.unset("has no effect without notify.smtp-url: set that, or remove this setting", "notify.from")
	}
	if v.url("notify.console-url", c.ConsoleURL, "http", "https") {
		if u, err := url.Parse(c.ConsoleURL); err == nil && (u.RawQuery != "" || u.Fragment != "" || u.User != nil) {
			v.wrong("notify.console-url", "must not have a user, a query or a fragment")
		}
	}
}

func (v *validation) http(c Config) {
	v.auth(c.Auth)
	if c.Auth.Mode == auth.ModeNone {
		v.listen("http.listen", c.HTTP.Listen, "auth.mode none admits every caller that can reach the address")
	} else if _, _, ok := HostPort(c.HTTP.Listen); !ok {
		v.wrong("http.listen", "must be host:port with a port from 0 to 65535")
	}
	for _, origin := range c.HTTP.AllowedOrigins {
		if err := http.NewCrossOriginProtection().AddTrustedOrigin(origin); err != nil {
			v.wrong("http.allowed-origins", fmt.Sprintf("has %q; each must be like https://shop.example, without a path", origin))
		}
	}
	_, err := c.HTTP.Proxies()
	v.usable("http.trusted-proxies", err)
	if v.together("http.tls-cert", "http.tls-key") && c.HTTP.TLSCert != "" && slices.Contains(c.Roles, RoleAPI) { // instances with other roles may lack the right to read the files
		if _, err := tls.LoadX509KeyPair(c.HTTP.TLSCert, c.HTTP.TLSKey); err != nil {
			v.wrong("http.tls-cert", "cannot be used with http.tls-key: "+err.Error())
		}
	}
	if at := c.HTTP.ProbeListen; at != "" {
		if _, port, ok := HostPort(at); !ok {
			v.wrong("http.probe-listen", "must be host:port with a port from 0 to 65535")
		} else if at == c.HTTP.Listen && port != 0 {
			v.wrong("http.probe-listen", "must differ from http.listen")
		}
	}
}

func (v *validation) auth(c Auth) {
	if c.Mode != auth.ModeJWT {
		v.unset("has no effect unless auth.mode is jwt: set that, or remove this setting",
			"auth.jwt.jwks", "auth.jwt.issuer", "auth.jwt.audience", "auth.jwt.user-claim", "auth.jwt.role-claim")
		return
	}
	for _, must := range []struct{ name, why string }{
		{"auth.jwt.jwks", "the keys of the token issuer"},
		{"auth.jwt.issuer", "the name of the token issuer"},
		{"auth.jwt.audience", "the audience of the tokens"},
		{"auth.jwt.user-claim", "the claim that holds the user ID"},
		{"auth.jwt.role-claim", "the claim that holds the role"},
	} {
		if strings.TrimSpace(v.config.Text(must.name)) == "" {
			v.wrong(must.name, "is missing, but auth.mode jwt needs "+must.why)
		}
	}
	if c.JWT.JWKS == "" || c.JWT.Issuer == "" || c.JWT.Audience == "" {
		return
	}
	tokens, err := auth.NewTokens(c.JWT.Tokens(obs.Log{}))
	v.usable("auth.jwt.jwks", err)
	if err == nil {
		tokens.Close()
	}
}

// warnings returns warnings about values that are safe, but probably a mistake.
func (c Config) warnings() []string {
	var warnings []string
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	if c.Money.SettleAfter < c.Money.Timeout {
		warn("money.settle-after %s is below money.timeout %s, so a lookup may count as final while the charge is still in flight; raise it outside of tests",
			ShortDuration(c.Money.SettleAfter), ShortDuration(c.Money.Timeout))
	}
	if c.Money.IdempotencyWindow <= c.Money.SettleAfter {
		warn("money.idempotency-window %s is not above money.settle-after %s, so every payout is looked up before each retry; raise it to what the Money API documents",
			ShortDuration(c.Money.IdempotencyWindow), ShortDuration(c.Money.SettleAfter))
	}
	if n := utf8.RuneCountInString(c.Webhook.Secret); n > 0 && n < webhookSecretGood {
		warn("webhook.secret has only %d characters, so a receiver of one webhook could guess it; use %d or more random characters", n, webhookSecretGood)
	}
	warnings = append(warnings, c.plainText()...)
	// Instances with other roles may share a file, but a flag is for this instance.
	if source := c.Source("http.listen"); strings.HasPrefix(source, sourceFlag) && !slices.Contains(c.Roles, RoleAPI) {
		warn("http.listen %s has no effect, because this instance does not have the role %s; add the role, or omit the address", c.HTTP.Listen, RoleAPI)
	}
	return warnings
}

// usable adds a problem if a check of a setting failed. The error continues a sentence that
// begins with its name.
func (v *validation) usable(name string, err error) {
	if err != nil {
		v.wrong(name, err.Error())
	}
}

// wrong adds a problem with the value of a setting.
func (v *validation) wrong(name, detail string) {
	s, _ := settingByName(name)
	v.problems = append(v.problems, Problem{
		Name:   name,
		Value:  s.Shown(v.config.Text(name)),
		Source: v.config.Source(name),
		Detail: detail,
	})
}

// good reports whether the value of a setting has no problem so far.
func (v *validation) good(name string) bool {
	return !slices.ContainsFunc(v.problems, func(p Problem) bool { return p.Name == name })
}

// together checks that two settings are set, or neither. It reports whether they are.
func (v *validation) together(name, with string) bool {
	if (v.config.Text(name) == "") != (v.config.Text(with) == "") {
		v.wrong(name, "must be set together with "+with+", or not at all")
		return false
	}
	return true
}

// url checks a URL that may be empty, and reports whether it is valid.
func (v *validation) url(name, text string, schemes ...string) bool {
	if text == "" && name != "redis.url" {
		return true
	}
	u, err := url.Parse(text)
	if err != nil || !slices.Contains(schemes, u.Scheme) || u.Opaque != "" {
		v.wrong(name, "must start with "+strings.Join(schemes, ":// or ")+":// and be a complete URL")
		return false
	}
	// The query of a PostgreSQL URL may name a socket instead of a host.
	if u.Hostname() == "" && (u.Scheme != "postgres" && u.Scheme != "postgresql" || u.Query().Get("host") == "") {
		v.wrong(name, "must name a host")
		return false
	}
	return true
}

// listen checks a listen address that only this machine may reach. why is the reason.
func (v *validation) listen(name, address, why string) {
	host, _, ok := HostPort(address)
	if !ok {
		v.wrong(name, "must be host:port with a port from 0 to 65535")
		return
	}
	remedy := "use 127.0.0.1, because " + why
	if host == "" {
		v.wrong(name, "would accept connections from other machines; "+remedy)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	addresses, err := v.resolve(ctx, host)
	if err != nil || len(addresses) == 0 {
		v.wrong(name, fmt.Sprintf("has the host %q, which cannot be resolved: use an IP address, or correct the name", host))
		return
	}
	for _, a := range addresses {
		if !a.IP.IsLoopback() {
			v.wrong(name, fmt.Sprintf("must be a loopback address (%s is not); %s", a.IP, remedy))
			return
		}
	}
}

// HostPort splits host:port. It reports false if the port is not a number from 0 to
// 65535.
func HostPort(address string) (host string, port int, ok bool) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, false
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65_535 || strconv.Itoa(port) != text {
		return "", 0, false
	}
	return host, port, true
}
