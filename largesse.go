// Package largesse embeds the Largesse reward engine in a program. It pays each
// target of a promotion at most once through a provider that may be slow or
// unreliable, and it issues coupons from a fixed stock in order of arrival.
//
//	engine, err := largesse.New(largesse.Config{}, largesse.WithProvider(bank))
//	if err != nil {
//		log.Fatal(err)
//	}
//	go engine.Run(ctx)
//	promotion, err := engine.Client().CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: 100})
//
// The zero Config runs on embedded engines: SQLite, a work queue and a Kafka broker
// in this process, with their data in ./largesse-data. Instances share the work if
// they share a database, Redis and Kafka.
//
// The package handles no signals, reads neither the environment nor flags, and logs
// only to the logger of WithLogger. It sets global variables of one library,
// github.com/danielgtaylor/huma/v2: its error model (huma.NewError,
// huma.NewErrorWithContext), huma.ValidateStrictCasing and two validation texts. A program that also uses huma gets the values of Largesse, unless it
// sets its own in main.
package largesse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/obs"
)

// Config configures an Engine. The zero Config stores everything in ./largesse-data
// and does not listen for the API; its embedded Kafka broker listens on a port of
// the loopback address.
type Config struct {
	DataDir      string   // directory of the embedded engines; "": ./largesse-data
	DatabaseURL  string   // postgres://…; "": SQLite in DataDir
	RedisURL     string   // redis://…; "": a work queue and gate in this process
	MoneyURL     string   // base URL of the Money API; "": WithProvider is required
	Listen       string   // host:port of the API; port 0: any free port; "": no listener
	KafkaBrokers []string // host:port of some brokers; none: a broker in this process
	// Settings contains other settings by their name in docs/settings.md, with
	// values as in the environment, for example "money.timeout": "2s".
	Settings map[string]string
}

// Option configures an Engine.
type Option func(*Engine)

// WithLogger makes the Engine log to l. Without it, or if l is nil, the Engine
// discards its log. The handler of l controls level and format.
func WithLogger(l *slog.Logger) Option {
	return func(e *Engine) { e.log = l }
}

// WithProvider makes the Engine charge through p instead of the Money API at
// Config.MoneyURL.
func WithProvider(p Provider) Option {
	return func(e *Engine) { e.provider = p }
}

// Engine is one instance of Largesse in this process. Its methods are safe for
// concurrent use.
type Engine struct {
	log      *slog.Logger
	provider Provider
	warnings []string
	engine   *engine.Engine
	client   *client.Client

	ran  atomic.Bool
	up   chan struct{} // closed when Run has started the instance
	over chan struct{} // closed when Run has returned
}

// New returns an Engine. The error reports all problems of the configuration at once.
// New opens no file, port or connection; Run does.
func New(cfg Config, opts ...Option) (*Engine, error) {
	e := &Engine{up: make(chan struct{}), over: make(chan struct{})}
	for _, o := range opts {
		o(e)
	}
	program, problems := cfg.settings()
	c, warnings, found, err := config.Examine(config.LoadParams{Program: program})
	if err != nil {
		return nil, fmt.Errorf("largesse: %w", err)
	}
	problems = append(problems, found...)
	if e.provider == nil && c.Money.URL == "" && slices.Contains(c.Roles, config.RolePayout) {
		problems = append(problems, config.Problem{Name: "money.url", Detail: "is not set and there is no WithProvider: use one of them"})
	}
	problems = append(problems, engine.Problems(c, true)...)
	if len(problems) > 0 {
		return nil, fmt.Errorf("largesse: %w", &config.Error{Problems: problems})
	}
	options := []engine.Option{engine.WithVersion(moduleVersion())}
	if e.provider != nil {
		options = append(options, engine.WithLocalProvider(adapter{e.provider}))
	}
	if _, listens := program[settingListen]; !listens {
		options = append(options, engine.WithoutListener())
	}
	e.warnings = warnings
	if e.engine, err = engine.New(c, obs.FromSlog(e.log), options...); err != nil {
		return nil, fmt.Errorf("largesse: %w", err)
	}
	e.client, err = client.New("http://in-process", client.Options{
		Actor: "in-process", Transport: &transport{handler: e.engine.AdminHandler(), up: e.up, over: e.over},
		Timeout: callTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("largesse: %w", err)
	}
	return e, nil
}

// callTimeout limits calls in process. It is so long that the caller's context ends
// them first.
const callTimeout = 24 * time.Hour

const settingListen = "http.listen"

// settings returns the settings in cfg by name.
func (cfg Config) settings() (map[string]config.Value, []config.Problem) {
	const source = "Config.Settings"
	program := map[string]config.Value{}
	for name, text := range cfg.Settings {
		program[name] = config.Value{Text: text, Source: source}
	}
	var problems []config.Problem
	wrong := func(name, detail string) {
		problems = append(problems, config.Problem{Name: name, Source: source, Detail: detail})
		delete(program, name)
	}
	for _, name := range []string{"log.format", "log.level"} {
		if _, set := program[name]; set {
			wrong(name, "has no effect here, because the handler of the logger controls it: remove this setting")
		}
	}
	for _, field := range []struct{ field, name, text string }{
		{"DataDir", "data.dir", cfg.DataDir},
		{"DatabaseURL", "database.url", cfg.DatabaseURL},
		{"KafkaBrokers", "kafka.brokers", strings.Join(cfg.KafkaBrokers, ",")},
		{"Listen", settingListen, cfg.Listen},
		{"MoneyURL", "money.url", cfg.MoneyURL},
		{"RedisURL", "redis.url", cfg.RedisURL},
	} {
		if field.text == "" {
			continue
		}
		if _, twice := program[field.name]; twice {
			wrong(field.name, "is also set by Config."+field.field+"; keep one")
		}
		program[field.name] = config.Value{Text: field.text, Source: "Config." + field.field}
	}
	return program, problems
}

// moduleVersion returns the version of this module in the program.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == "github.com/largesse/largesse" && strings.HasPrefix(m.Version, "v") {
			return m.Version
		}
	}
	return "devel"
}

// Run opens the parts that the configuration names and works until ctx ends. Then it
// finishes or returns pending payouts, closes everything and returns nil. Run
// returns an error if it cannot start, or if another instance took its exclusive
// lease. Run may be called only once.
func (e *Engine) Run(ctx context.Context) error {
	if !e.ran.CompareAndSwap(false, true) {
		return errors.New("largesse: Run was already called; create another Engine")
	}
	defer close(e.over)
	if ctx.Err() != nil {
		return nil
	}
	if e.log != nil {
		for _, w := range e.warnings {
			e.log.Warn("setting is probably a mistake", "setting", w)
		}
	}
	err := e.engine.Run(ctx, func() error {
		close(e.up)
		return nil
	})
	switch {
	case err == nil, ctx.Err() != nil && errors.Is(err, context.Canceled):
		return nil
	}
	return fmt.Errorf("largesse: %w", err)
}

// Handler returns the HTTP API with its OpenAPI description, docs, health checks and
// metrics, for the server of the program. It may be mounted below a prefix with
// http.StripPrefix. It answers 503 before Run has started the instance, and after
// Run has returned.
//
// While the setting auth.mode is none, which is the default, every caller of the
// handler is an admin, under any host name. Put it behind middleware that admits
// only authorized callers, or set auth.mode.
func (e *Engine) Handler() http.Handler { return e.engine.Handler() }

// Client returns a client that calls this Engine in process, as an admin. Its calls
// wait until Run has started the instance, and fail after Run has returned.
func (e *Engine) Client() *client.Client { return e.client }
