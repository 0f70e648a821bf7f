// Package largesse embeds the Largesse reward engine in a program: payouts that
// reach every target exactly once through a slow provider, and coupons for
// those who come first, with books that balance.
//
//	engine, err := largesse.New(largesse.Config{}, largesse.WithProvider(bank))
//	if err != nil {
//		log.Fatal(err)
//	}
//	go engine.Run(ctx)
//	promotion, err := engine.Client().CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: 100})
//
// The zero Config runs on embedded engines: SQLite, a work queue and a Kafka
// broker in this process, all in ./largesse-data. Several instances share the
// work when they share a database, a Redis and a Kafka.
//
// The package catches no signals, reads no environment and no flags, and writes
// its log nowhere but to the logger of WithLogger. It changes one library for
// the whole process: github.com/danielgtaylor/huma/v2 has its error model
// (huma.NewError, huma.NewErrorWithContext), huma.ValidateStrictCasing and two
// texts of its validation in variables. A program that uses huma too gets those
// of Largesse, unless it sets its own in main.
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

// Config configures an Engine. The zero Config keeps everything in
// ./largesse-data and listens nowhere.
type Config struct {
	DataDir      string   // folder of the embedded engines; "": ./largesse-data
	DatabaseURL  string   // postgres://…; "": SQLite in DataDir
	RedisURL     string   // redis://…; "": a work queue in this process
	MoneyURL     string   // the Money API that pays; "": WithProvider pays
	Listen       string   // host:port of the API, port 0 for any free one; "": no listener
	KafkaBrokers []string // host:port; none: a broker in this process
	// Settings holds any other setting by its name in docs/settings.md, with
	// values as in the settings file: "money.timeout": "2s".
	Settings map[string]string
}

// Option changes how New makes an Engine.
type Option func(*Engine)

// WithLogger makes the Engine write its log to l. Without it, and for a nil
// logger, the log is discarded. The handler of l decides about levels and form.
func WithLogger(l *slog.Logger) Option {
	return func(e *Engine) { e.log = l }
}

// WithProvider makes the Engine pay through p instead of the Money API at
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
	up   chan struct{} // closed when Run is up
	over chan struct{} // closed when Run has ended
}

// New makes an Engine. It reports everything that is wrong with the
// configuration at once. It opens nothing: no file, no port and no connection.
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
		problems = append(problems, config.Problem{Name: "money.url", Detail: "is not set and there is no WithProvider: one of them has to pay"})
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

// callTimeout bounds calls in process by so much that the caller's context
// decides.
const callTimeout = 24 * time.Hour

const settingListen = "http.listen"

// settings returns what cfg sets, by the names of the settings.
func (cfg Config) settings() (map[string]config.ProgramValue, []config.Problem) {
	const source = "Config.Settings"
	program := map[string]config.ProgramValue{}
	for name, text := range cfg.Settings {
		program[name] = config.ProgramValue{Text: text, Source: source}
	}
	var problems []config.Problem
	wrong := func(name, detail string) {
		problems = append(problems, config.Problem{Name: name, Source: source, Detail: detail})
		delete(program, name)
	}
	for _, name := range []string{"log.format", "log.level"} {
		if _, set := program[name]; set {
			wrong(name, "has no effect here: the handler of the logger decides; take it out")
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
			wrong(field.name, "is set by Config."+field.field+" too; keep one")
		}
		program[field.name] = config.ProgramValue{Text: field.text, Source: "Config." + field.field}
	}
	return program, problems
}

// moduleVersion is the version of this module within the program.
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

// Run opens what the configuration names and works until ctx ends. Then it
// finishes or hands back what is in hand, closes everything and returns nil. It
// returns an error when it cannot start, or when the instance has lost something
// that only one instance may have. Run may be called once.
func (e *Engine) Run(ctx context.Context) error {
	if !e.ran.CompareAndSwap(false, true) {
		return errors.New("largesse: Run was called before; make another Engine")
	}
	defer close(e.over)
	if ctx.Err() != nil {
		return nil
	}
	if e.log != nil {
		for _, w := range e.warnings {
			e.log.Warn("setting may not be meant", "setting", w)
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

// Handler returns the HTTP API with its description, docs, probes and metrics,
// for the server of the program. It may be mounted below a prefix with
// http.StripPrefix. It answers 503 until Run is up and after Run has ended.
//
// While the setting auth.mode is none, which is the default, everybody who
// reaches the handler is an admin under any host name: put it behind
// middleware that lets only the right people in, or set auth.mode.
func (e *Engine) Handler() http.Handler { return e.engine.Handler() }

// Client returns a client that calls this Engine in process, as an admin. Its
// calls wait until Run is up, and fail once Run has ended.
func (e *Engine) Client() *client.Client { return e.client }
