// Package engine runs one instance of Largesse. An Engine opens the parts that the
// settings name, runs the roles, and closes everything again.
package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/console"
	"github.com/largesse/largesse/internal/api"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/books"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/redisgate"
	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/governor/redisrate"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/tracing"
	"github.com/largesse/largesse/internal/web"
	"github.com/largesse/largesse/internal/webhook"
)

// stopTimeout limits the time that Stop waits for calls in flight.
const stopTimeout = 5 * time.Second

// embeddedPartitions is the number of partitions of each topic of the embedded
// broker, which one process reads.
const embeddedPartitions = 6

// Engine is one instance of Largesse. It opens the parts that config.Config names,
// connects them, runs the roles, and closes everything again.
type Engine struct {
	cfg      config.Config
	log      obs.Log // for the parts
	own      obs.Log
	instance string
	version  string
	metrics  *obs.Metrics
	troubles *obs.Troubles
	tracer   *tracing.Tracer // nil without otel.endpoint
	provider payout.Provider
	local    money.LocalProvider // nil: none
	unbound  bool                // the API has no listener
	above    reward.Limits       // approval.above, with approval.currencies
	perDay   reward.Limits       // approval.above-per-day, likewise
	// ensureTopics replaces bus.Client.EnsureTopics in tests; nil: it does not.
	ensureTopics func(context.Context) error

	closers []func() // called by Stop in reverse order
	lost    chan error
	store   *rows.Tables
	queue   queue.Queue
	broker  *bus.Broker
	bus     *bus.Client
	flow    *payout.Flow
	books   *books.Reconciler
	gate    gate.Gate
	coupons *coupon.Flow
	mount   *web.Mount
	server  *web.Server // nil without the role api, or unbound
	probes  *web.Server // nil without http.probe-listen or a listener
	pulse   *pulse
}

// Option configures an Engine.
type Option func(*Engine)

// WithProvider makes the Engine charge through p instead of the Money API at
// money.url.
func WithProvider(p payout.Provider) Option {
	return func(e *Engine) { e.provider = p }
}

// WithLocalProvider makes the Engine charge through p, in this process, instead of
// the Money API at money.url.
func WithLocalProvider(p money.LocalProvider) Option {
	return func(e *Engine) { e.local = p }
}

// WithoutListener makes the Engine open no listener for the API. Handler still works.
func WithoutListener() Option {
	return func(e *Engine) { e.unbound = true }
}

// WithVersion sets the version that the instance reports. The default is "devel".
func WithVersion(version string) Option {
	return func(e *Engine) { e.version = version }
}

// New checks the settings and returns an Engine. It opens nothing; Start does.
func New(cfg config.Config, log obs.Log, opts ...Option) (*Engine, error) {
	metrics := obs.NewMetrics()
	log = log.Counted(metrics)
	own := log.For(obs.Engine)
	e := &Engine{
		cfg: cfg, log: log, own: own, instance: service.InstanceID(), version: "devel",
		metrics: metrics, troubles: obs.NewTroubles(metrics, own), lost: make(chan error, 1),
	}
	for _, o := range opts {
		o(e)
	}
	e.metrics.Built(e.version)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	for _, p := range Problems(cfg, e.provider != nil || e.local != nil) {
		return nil, errors.New(p.String())
	}
	var err error
	if e.above, e.perDay, err = cfg.Approval.Limits(); err != nil {
		return nil, err
	}
	why := notUp
	if !e.plays(config.RoleAPI) {
		why = "this instance does not have the role " + config.RoleAPI
	}
	if e.mount, err = web.NewMount(cfg.HTTP.AllowedOrigins, why); err != nil {
		return nil, err
	}
	return e, nil
}

// notUp is the reason of the 503 that Handler answers with before Start and after
// Stop.
const notUp = "the instance is not up"

// Problems returns the problems of settings that are valid alone, but not together
// with the roles. pays reports whether the instance has a provider other than
// money.url.
func Problems(cfg config.Config, pays bool) []config.Problem {
	var problems []config.Problem
	payer := slices.Contains(cfg.Roles, config.RolePayout)
	if payer && !pays && cfg.Money.URL == "" {
		problems = append(problems, config.Problem{
			Name: "money.url", Detail: "is not set: set it to the provider's Money API, or start a simulated one with: largesse moneysim",
		})
	}
	if !payer && alone(cfg) {
		problems = append(problems, config.Problem{
			Name:   "redis.url",
			Detail: "is empty, so this instance must consume its own queue: add role " + config.RolePayout + " or set redis.url",
		})
	}
	return problems
}

func (e *Engine) plays(role string) bool { return slices.Contains(e.cfg.Roles, role) }

// Start opens everything and runs the roles in the background. If it fails, it
// closes everything again.
func (e *Engine) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	for _, step := range []func(context.Context) error{
		e.lockDataDir,
		e.bindAPI, // before other instances can see this one: its address may be in use
		e.openStore,
		e.takeName,
		e.openQueue,
		e.openBus,
		e.openProvider,
		e.startFlow,
		e.startCoupons,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	e.startRetention(ctx)
	e.startTimelines(ctx)
	e.startWaits(ctx)
	e.startMonitor(ctx)
	if err := e.startAPI(ctx); err != nil {
		return err
	}
	e.own.Info("instance started", "instance", e.instance, "roles", strings.Join(e.cfg.Roles, ","), "http", e.Addr(),
		"store", engineOf(e.cfg.Database.URL, "sqlite"), "queue", engineOf(e.cfg.Redis.URL, "in process"), "kafka", strings.Join(e.Brokers(), ","))
	return nil
}

// engineOf returns the scheme of a URL, or embedded if there is no URL.
func engineOf(url, embedded string) string {
	scheme, _, ok := strings.Cut(url, "://")
	if !ok {
		return embedded
	}
	return scheme
}

func (e *Engine) onClose(f func()) { e.closers = append(e.closers, f) }

// background calls run in the background until the instance stops.
func (e *Engine) background(ctx context.Context, run func(ctx context.Context)) {
	var running service.Base
	running.Start(context.WithoutCancel(ctx), run)
	e.onClose(running.Stop)
}

// every calls work at once, and then about once per interval until ctx ends. It reports
// the result of each call.
func every(ctx context.Context, interval time.Duration, report func(error, ...any), work func(ctx context.Context) error) {
	for {
		if err := work(ctx); ctx.Err() == nil {
			report(err)
		}
		if !service.Sleep(ctx, service.Jitter(interval, 0.1)) {
			return
		}
	}
}

// lockDataDir takes data.dir for this process, if it stores anything there.
func (e *Engine) lockDataDir(context.Context) error {
	if e.cfg.Database.URL != "" && len(e.cfg.Kafka.Brokers) > 0 {
		return nil
	}
	lock, err := parts.LockDir(e.cfg.Data.Dir, e.instance)
	if err != nil {
		return err
	}
	e.onClose(lock.Release)
	if err := parts.CloseDataDir(e.cfg); err != nil {
		e.own.Warn("closing data.dir to other users failed", err)
	}
	if err := parts.CheckClosed(e.cfg.Data.Dir); err != nil {
		e.own.Warn("data.dir is open", err)
	}
	return nil
}

func (e *Engine) openStore(ctx context.Context) error {
	s, err := parts.OpenStore(ctx, e.cfg, e.instance, e.metrics, e.log)
	if err != nil {
		return err
	}
	e.store = s
	e.onClose(s.Close)
	return migrate(ctx, e.cfg, e.instance, s, func(instances []string) error {
		e.log.Warn("waiting for instances of an older version to stop",
			errors.New("the coupon protocol changes, and both versions must not issue coupons at the same time: stop these instances"),
			"instances", instances)
		return nil
	})
}

// takeName takes the lease of this instance's name. If a running instance has the
// name, such as a container with the same hostname and process ID, it adds a
// suffix. It also takes the exclusive lease of a queue in this process.
func (e *Engine) takeName(ctx context.Context) error {
	base := e.instance
	for n := 2; ; n++ {
		l, err := takeLease(ctx, e.store, "instance "+e.instance, e.instance, e.fail, e.log)
		if err == nil {
			e.onClose(l.release)
			break
		}
		if !errors.Is(err, parts.ErrInUse) || n > 100 {
			return err
		}
		e.instance = fmt.Sprintf("%s.%d", base, n)
	}
	// With SQLite, the lock of data.dir already excludes other instances.
	if alone(e.cfg) && e.cfg.Database.URL != "" {
		l, err := takeAbandonedLease(ctx, e.store, "work queue in process", e.instance, e.fail, e.log)
		if err != nil {
			return fmt.Errorf("redis.url is empty, so the work queue is in this process and only one instance may run: %w", err)
		}
		e.onClose(l.release)
	}
	return nil
}

// fail reports why this instance must stop: it has lost an exclusive lease, or the
// topics cannot be created.
func (e *Engine) fail(err error) {
	select {
	case e.lost <- err:
	default:
	}
}

// Lost returns a channel that delivers the reason if this instance must be stopped: it
// has lost an exclusive lease, of its name or of the queue, or could not create the topics.
func (e *Engine) Lost() <-chan error { return e.lost }

func (e *Engine) openQueue(ctx context.Context) error {
	if queueIsHere(e.cfg) {
		e.queue = queue.NewMemory()
	} else {
		q, err := redisstream.Open(ctx, parts.RedisConfig(e.cfg, e.log))
		if err != nil {
			return err
		}
		e.queue = q
	}
	e.onClose(e.queue.Close)
	return nil
}

func (e *Engine) openBus(ctx context.Context) error {
	cfg := parts.BusConfig(e.cfg, e.instance, e.log)
	if len(cfg.Brokers) == 0 {
		cfg.SASL = parts.BrokerLogin(e.cfg)
		b, err := bus.StartBroker(ctx, bus.BrokerConfig{
			Dir: parts.BrokerDir(e.cfg), Listen: e.cfg.Kafka.EmbeddedListen, Login: cfg.SASL, Log: e.log,
		})
		if err != nil {
			return err
		}
		e.broker = b
		e.onClose(b.Close)
		cfg.Brokers = []string{b.Addr()}
		cfg.Partitions, cfg.Retention = embeddedPartitions, bus.DefaultRetention
	}
	c, err := bus.Open(ctx, cfg)
	if err != nil {
		return err
	}
	e.bus = c
	e.onClose(c.Close)
	return e.openTopics(ctx)
}

func (e *Engine) openProvider(context.Context) error {
	cfg := parts.MoneyConfig(e.cfg, e.log)
	cfg.Metrics = e.metrics
	if e.local != nil {
		l := money.NewLocal(e.local, cfg)
		e.provider = l
		e.onClose(l.Close)
		return nil
	}
	if e.provider != nil || e.cfg.Money.URL == "" {
		return nil // New refuses the role payout without a provider
	}
	c, err := money.New(cfg)
	if err != nil {
		return err
	}
	e.provider = c
	e.onClose(c.Close)
	return nil
}

func queueIsHere(cfg config.Config) bool { return cfg.Redis.URL == "" || !cfg.Redis.Stream.Enabled }

// alone reports whether no other instance can have dispatched anything.
func alone(cfg config.Config) bool {
	return queueIsHere(cfg) && (cfg.Redis.Stream.Enabled || cfg.Database.URL == "")
}

// openRates opens the store through which instances share rates: Redis, if it is
// configured. It returns nil if this instance shares them with no other.
func (e *Engine) openRates(ctx context.Context) (governor.Rates, error) {
	switch {
	case !e.plays(config.RolePayout) && !e.plays(config.RoleHousekeeping), e.cfg.Redis.URL == "" && alone(e.cfg):
		return nil, nil //nolint:nilnil // nil is valid
	case e.cfg.Redis.URL == "":
		return unshared{}, nil
	}
	rates, err := redisrate.Open(ctx, parts.RedisConfig(e.cfg, e.log))
	if err != nil {
		return nil, err
	}
	e.onClose(rates.Close)
	return rates, nil
}

// unshared is the governor.Rates of instances without Redis. They share nothing: each
// one uses its part of the rates, its own circuit breaker, and the Retry-After of its
// own calls.
type unshared struct{}

// Lease implements governor.Rates.
func (unshared) Lease(context.Context, governor.LeaseParams) (governor.Run, error) {
	return governor.Run{}, fmt.Errorf("redis.url is empty: %w", governor.ErrUnshared)
}

func (e *Engine) startFlow(ctx context.Context) error {
	if e.cfg.Otel.Endpoint != "" {
		e.tracer = tracing.New(tracing.Config{
			Endpoint: e.cfg.Otel.Endpoint, SampleOneIn: e.cfg.Otel.SampleOneIn, Instance: e.instance, Version: e.version,
			Metrics: e.metrics, Log: e.log,
		})
		e.onClose(e.tracer.Stop)
	}
	stream := e.cfg.Redis.Stream
	heart := newHeartbeat(heartbeatConfig{
		rows: e.store, self: store.Instance{
			Name: e.instance, Version: e.version, Roles: slices.Clone(e.cfg.Roles), StartedAt: time.Now(),
			Approvals: e.cfg.Approval.String(),
		},
		pools: func() []pool.Status { return e.flow.Pools() }, troubles: e.troubles, metrics: e.metrics,
		governed: e.plays(config.RolePayout) || e.plays(config.RoleHousekeeping), log: e.log,
	})
	rates, err := e.openRates(ctx)
	if err != nil {
		return err
	}
	promotions := e.promotions(service.NewIDs())
	limits := payout.Limits{
		MoneyTimeout: e.cfg.Money.Timeout, Lease: stream.Lease(), SettleAfter: e.cfg.Money.SettleAfter,
		IdempotencyWindow: e.cfg.Money.IdempotencyWindow, GiveUpAfter: e.cfg.Money.GiveUpAfter,
	}
	flow, err := payout.New(payout.Config{
		Store: e.store, Queue: e.queue, Bus: e.bus, Provider: e.provider,
		Pool: pool.Config{
			Instance:     e.instance,
			MinConsumers: stream.MinConsumerPerInstance, MaxConsumers: stream.MaxConsumerPerInstance,
			InFlight: stream.InFlightPerConsumer, BatchSize: stream.BatchSize,
			PollInterval: stream.PollInterval(), IdleTimeout: stream.IdleTimeout(), Lease: stream.Lease(),
			StopTimeout: stopTimeout, Changed: heart.hint, PendingMax: 2 * e.cfg.Money.MaxConcurrency,
		},
		Governor: governor.Config{
			MaxConcurrency: e.cfg.Money.MaxConcurrency, RatePerSecond: e.cfg.Money.RatePerSecond,
			Rates: rates, Instances: heart.instances,
		},
		ApprovalAbove: e.above, ApprovalPerDay: e.perDay,
		Start: func(ctx context.Context, id reward.PromotionID) error {
			_, err := promotions.Start(ctx, id)
			return err
		},
		MaxLen:       stream.MaxLen,
		Limits:       limits,
		Direct:       !stream.Enabled,
		QueueIsLocal: alone(e.cfg),
		Ingest:       e.plays(config.RoleIngest), Payout: e.plays(config.RolePayout), Housekeeping: e.plays(config.RoleHousekeeping),
		Breaches: payout.Breaches{ // the books need the flow, and so are made after it
			ChargedTwice: func(ctx context.Context, c store.SecondCharge) { e.books.ChargedTwice(ctx, c) },
			KeyShared: func(ctx context.Context, key string, first, second store.PayoutID) {
				e.books.KeyShared(ctx, key, first, second)
			},
		},
		Metrics: e.metrics, Tracer: e.tracer, Troubles: e.troubles, Log: e.log,
	})
	if err != nil {
		return err
	}
	e.flow = flow
	e.metrics.PoolsFrom(func() (pools, consumers, pending int) {
		all := flow.Pools()
		for _, p := range all {
			consumers += len(p.Consumers)
			pending += p.Pending
		}
		return len(all), consumers, pending
	})
	// It stops after the flow, so that it reports pending entries until the end.
	heart.Start(context.WithoutCancel(ctx))
	e.onClose(heart.Stop)
	var streams queue.Queue // nil: this instance cannot read the queues of others
	if stream.Enabled {
		streams = e.queue
	}
	e.books = books.New(books.Config{
		Store: e.store, Queue: streams, Charges: flow, Views: flow.Views, Owns: flow.Owns, Hint: flow.Hint,
		Interval: e.cfg.Reconcile.Interval, DispatchHorizon: limits.DispatchHorizon(), Metrics: e.metrics, Log: e.log,
	})
	webhooks := campaign.NewWebhooks(campaign.WebhooksConfig{
		Rows: e.store, Secret: e.cfg.Webhook.Secret, AllowPrivate: e.cfg.Webhook.AllowPrivate, Metrics: e.metrics, Log: e.log,
	})
	mail, err := e.cfg.Notify.MailServer()
	if err != nil {
		return err // Validate refuses it
	}
	zone, err := e.cfg.Notify.Zone()
	if err != nil {
		return err // Validate refuses it
	}
	deliverer := webhook.NewDeliverer(webhook.Config{
		Rows: e.store, AllowPrivate: e.cfg.Webhook.AllowPrivate, Metrics: e.metrics, Log: e.log,
		Notify: webhook.Notify{SlackURL: e.cfg.Notify.SlackURL, Languages: e.cfg.Console.Languages, Mail: mail, ConsoleURL: e.cfg.Notify.ConsoleURL, Zone: zone},
	})
	e.onClose(func() {
		// They stop concurrently, so that they wait for their calls in flight together.
		var stopping sync.WaitGroup
		for _, stop := range []func(){flow.Stop, e.books.Stop, webhooks.Stop, deliverer.Stop} {
			stopping.Go(stop)
		}
		stopping.Wait()
	})
	if err := flow.Start(ctx); err != nil {
		return err
	}
	if e.plays(config.RoleHousekeeping) {
		e.books.Start(context.WithoutCancel(ctx))
		webhooks.Start(context.WithoutCancel(ctx))
		deliverer.Start(context.WithoutCancel(ctx))
	}
	return nil
}

// openGate opens the gate: in Redis, or in this process if no other instance can have
// one, or else noGate.
func (e *Engine) openGate(ctx context.Context) error {
	switch {
	case e.cfg.Redis.URL != "":
		g, err := redisgate.Open(ctx, parts.RedisConfig(e.cfg, e.log))
		if err != nil {
			return err
		}
		e.gate = g
	case alone(e.cfg):
		e.gate = gate.NewMemory()
	default:
		e.gate = newNoGate()
	}
	e.onClose(e.gate.Close)
	return nil
}

func (e *Engine) startCoupons(ctx context.Context) error {
	if err := e.openGate(ctx); err != nil {
		return err
	}
	c := e.cfg.Coupon
	_, none := e.gate.(noGate)
	if none {
		c.FallbackAfter = 0 // no gate will become available
	}
	flow, err := coupon.NewFlow(coupon.FlowConfig{
		Store: e.store, Gate: e.gate, NoGate: none, Bus: e.bus, Connected: e.flow.Connected, Instance: e.instance,
		Concurrency: c.ConsumerConcurrency, LockWait: c.LockWait, LockLease: c.LockLease,
		RefusalTTL: c.AvailabilityTTL, LapsedHolds: c.LapsedHolds, CodesAbove: int64(e.cfg.Approval.CodesAbove), FallbackAfter: c.FallbackAfter, QueueTTL: c.QueueTTL,
		Average:        time.Duration(c.AverageProcessingMillis) * time.Millisecond,
		ReconcileEvery: e.cfg.Reconcile.Interval,
		Issue:          e.plays(config.RoleIssuer), Housekeeping: e.plays(config.RoleHousekeeping),
		Metrics: e.metrics, Troubles: e.troubles, Log: e.log,
	})
	if err != nil {
		return err
	}
	e.coupons = flow
	e.onClose(flow.Stop)
	return flow.Start(ctx)
}

// startRetention removes old rows, if the instance does the housekeeping and a setting
// asks for it. The gate must be open.
func (e *Engine) startRetention(ctx context.Context) {
	if !e.plays(config.RoleHousekeeping) || e.cfg.Retention == (config.Retention{}) {
		return
	}
	old := &retention{rows: e.store, gate: e.gate, periods: e.cfg.Retention, instance: e.instance, log: e.own}
	e.background(ctx, old.run)
}

// streamNames returns a stream's key and consumer group in Redis, or "" for a stream
// in this process.
func (e *Engine) streamNames(s queue.Stream) (key, group string) {
	if queueIsHere(e.cfg) {
		return "", ""
	}
	return redisstream.StreamKey(e.cfg.Redis.KeyPrefix, s), redisstream.ConsumerGroup(e.cfg.Redis.KeyPrefix, s)
}

// bindAPI binds the addresses of the API and of the probes. startAPI serves it when everything else runs.
func (e *Engine) bindAPI(ctx context.Context) error {
	if e.unbound {
		return nil
	}
	bind := func(cfg web.ServerConfig) (*web.Server, error) {
		cfg.AuthMode, cfg.Log = e.cfg.Auth.Mode, e.log
		server, err := web.NewServer(cfg)
		if err == nil {
			err = server.Bind(ctx)
		}
		if err != nil {
			return nil, err
		}
		e.onClose(server.Stop)
		return server, nil
	}
	var without []string
	var err error
	if at := e.cfg.HTTP.ProbeListen; at != "" {
		if e.probes, err = bind(web.ServerConfig{Listen: at, Only: probePaths, Limits: web.Limits{Connections: probeConnections}}); err != nil {
			return err
		}
		without = []string{"/metrics"}
	}
	if !e.plays(config.RoleAPI) {
		return nil
	}
	e.server, err = bind(web.ServerConfig{
		Without: without, Listen: e.cfg.HTTP.Listen, Origins: e.cfg.HTTP.AllowedOrigins,
		TLSCert: e.cfg.HTTP.TLSCert, TLSKey: e.cfg.HTTP.TLSKey,
		Limits: web.Limits{Connections: parts.APIConnections(e.cfg, parts.OpenFilesMax())},
	})
	return err
}

// probePaths lists what the listener for probes serves. It has its own connections, so
// that clients of the API cannot take them.
var probePaths = []string{"/healthz", "/readyz", "/metrics"}

const probeConnections = 64

func (e *Engine) promotions(ids *service.IDs) *campaign.Promotions {
	maxRetries := e.cfg.Money.MaxRetries
	return campaign.NewPromotions(campaign.PromotionsConfig{
		Store: e.store, IDs: ids, Log: e.log, Hint: func(id reward.PromotionID) { e.flow.Hint(id) }, MaxRetries: &maxRetries,
		ApprovalAbove: e.above, ApprovalPerDay: e.perDay, Webhooks: e.cfg.Webhook.Secret != "",
		Payable: e.cfg.Money.Payable(),
	})
}

func (e *Engine) startMonitor(ctx context.Context) {
	e.pulse = &pulse{parts: map[string]func(context.Context) error{
		partStore: e.store.Ping, partQueue: e.queue.Ping, partKafka: e.bus.Ping,
	}}
	e.metrics.PartsFrom(e.pulse.up)
	m := &monitor{pulse: e.pulse, troubles: e.troubles, viewAge: e.flow.ViewAge, fullAt: e.store.FullAt, refusal: e.store.Refusal, clock: e.store.Clock}
	e.background(ctx, m.run)
}

func (e *Engine) startAPI(ctx context.Context) error {
	ids := service.NewIDs()
	if !e.plays(config.RoleAPI) {
		if e.probes == nil {
			return nil
		}
		handler := api.New(api.Config{
			Promotions: e.promotions(ids), Rows: e.store, Degraded: e.degraded, Troubles: e.troubles,
			Version: e.version, Metrics: e.metrics, Log: e.log,
		})
		return e.probes.Start(ctx, handler.Router)
	}
	verifier, err := e.openVerifier(ctx)
	if err != nil {
		return err
	}
	proxies, err := e.cfg.HTTP.Proxies()
	if err != nil {
		return err // Validate refuses them
	}
	pages, err := readPages(e.cfg)
	if err != nil {
		return err
	}
	handler := api.New(api.Config{
		TrustedProxies: proxies, HeldMost: min(e.cfg.HTTP.MaxHeldAnswers, max(parts.APIConnections(e.cfg, parts.OpenFilesMax())*4/5, 1)),
		Pages: pages, Texts: console.Texts,
		Verifier: verifier, IDs: ids,
		WebhookAllowPrivate: e.cfg.Webhook.AllowPrivate, SlackSet: e.cfg.Notify.SlackURL != "", MailSet: e.cfg.Notify.SMTPURL != "",
		CallerLimits: auth.NewLimits(float64(e.cfg.HTTP.RateLimit)), UserLimits: auth.NewLimits(float64(e.cfg.HTTP.RateLimitPerUser)),
		Promotions: e.promotions(ids), ApprovalAbove: e.above,
		DeadLetters: campaign.NewDeadLetters(campaign.DeadLettersConfig{
			Rows: e.store, Publisher: e.bus, Hint: e.flow.Hint, Log: e.log,
		}),
		Reconciler: e.books, Unblock: e.flow.Unblock,
		Templates: e.coupons.Catalog, Coupons: e.coupons.Catalog, Issuing: e.coupons.Intake, CouponReconciler: e.coupons.Reconciler,
		Watch: func(id reward.TemplateID, user string, since coupon.Status) (<-chan coupon.Status, func()) {
			w, stop := e.coupons.Notifier.Watch(id, user, since)
			return w.Updates(), stop
		},
		Uploads: campaign.NewUploads(campaign.UploadsConfig{
			Rows: e.store, Saver: e.flow, IDs: ids, Log: e.log, Hint: e.flow.Hint,
		}),
		ReadsPerCaller: max(1, e.cfg.Database.ReadConnections-1),
		Rows:           e.store, Streams: e.queue, StreamNames: e.streamNames, KafkaLags: e.bus.Lags, Degraded: e.degraded, Troubles: e.troubles,
		Settings: shownSettings(e.cfg), Version: e.version, Metrics: e.metrics, Tracer: e.tracer, Log: e.log,
	})
	handler.Start(context.WithoutCancel(ctx))
	e.onClose(handler.Stop)
	e.onClose(func() { e.mount.Close(notUp) })
	if e.probes != nil {
		if err := e.probes.Start(ctx, handler.Router); err != nil {
			return err
		}
	}
	if e.server != nil {
		// Stop it first, so that requests end before the parts that they need.
		e.onClose(e.server.Stop)
		if err := e.server.Start(ctx, handler.Router); err != nil {
			return err
		}
	}
	e.mount.Open(handler.Router)
	return nil
}

// Console returns the pages of the console by the pattern that serves them, for a
// program that shows them while no instance is up.
func Console(cfg config.Config) (map[string]http.Handler, error) {
	pages, err := readPages(cfg)
	if err != nil {
		return nil, err
	}
	handlers := make(map[string]http.Handler, len(pages))
	for pattern, page := range pages {
		handlers[pattern] = page
	}
	return handlers, nil
}

func readPages(cfg config.Config) (web.Pages, error) {
	kind, logo, err := cfg.Shop.Logo()
	if err != nil {
		return nil, fmt.Errorf("read shop.logo-file: %w", err)
	}
	return web.ReadPages(console.Files(), web.Look{
		Languages: cfg.Console.Languages, ShopName: cfg.Shop.Name, ShopAccent: cfg.Shop.AccentColor, ShopFooter: cfg.Shop.Footer, Logo: logo, LogoKind: kind,
	})
}

func shownSettings(cfg config.Config) []client.Setting {
	values := cfg.Values()
	shown := make([]client.Setting, len(values))
	for i, v := range values {
		shown[i] = client.Setting(v)
	}
	return shown
}

// openVerifier opens the verifier of callers. It returns nil if callers do not have to
// authenticate.
func (e *Engine) openVerifier(ctx context.Context) (auth.Verifier, error) {
	mode := e.cfg.Auth.Mode
	if mode == auth.ModeNone {
		return nil, nil //nolint:nilnil // nil is valid
	}
	callers := auth.Authenticator{Keys: auth.NewKeys(e.store, e.log)}
	callers.Keys.Start(context.WithoutCancel(ctx))
	e.onClose(callers.Keys.Stop)
	if mode == auth.ModeJWT {
		tokens, err := auth.NewTokens(e.cfg.Auth.JWT.Tokens(e.log))
		if err != nil {
			return nil, err
		}
		callers.Tokens = tokens
		e.onClose(tokens.Close)
	}
	return callers, nil
}

// The parts that a pulse checks.
const (
	partStore = "store"
	partQueue = "queue"
	partKafka = "kafka"
)

// degraded returns the unavailable parts. Work for them waits in the database.
func (e *Engine) degraded() []string {
	fails := e.pulse.check()
	var out []string
	for _, part := range []string{partQueue, partKafka} {
		if fails[part] != nil {
			out = append(out, part)
		}
	}
	return out
}

// Run starts the instance and calls up. When ctx ends, it stops the instance and
// returns nil. If up returns an error, or the instance loses an exclusive lease, it
// stops the instance and returns that error.
func (e *Engine) Run(ctx context.Context, up func() error) error {
	// The end of ctx cancels Start. After Start, it causes Stop, during which the
	// context of the parts must still be alive.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	keep := context.AfterFunc(ctx, end)
	if err := e.Start(life); err != nil {
		return fmt.Errorf("starting failed: %w", err)
	}
	keep()
	lost := up()
	if lost == nil {
		select {
		case <-ctx.Done():
		case lost = <-e.Lost():
		}
	}
	e.Stop()
	return lost
}

// Stop stops the instance. It accepts no new work, finishes or returns pending
// payouts, and closes everything. If the process is killed during Stop, no work is
// lost.
func (e *Engine) Stop() {
	e.own.Info("instance stopping", "instance", e.instance)
	e.close()
	e.own.Info("instance stopped", "instance", e.instance)
}

func (e *Engine) close() {
	for _, f := range slices.Backward(e.closers) {
		f()
	}
	e.closers = nil
}

// Handler returns the handler of the API. It answers 503 before Start and after Stop.
// It accepts every host name, because the server that it is mounted in controls
// who can reach it.
func (e *Engine) Handler() http.Handler { return e.mount }

// AdminHandler returns the handler for requests from this process. Their caller is an
// admin without authentication.
func (e *Engine) AdminHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mount.ServeHTTP(w, r.WithContext(auth.InProcess(r.Context())))
	})
}

// Addr returns the host:port that the API listens on, or "" if it has no listener.
func (e *Engine) Addr() string {
	if e.server == nil {
		return ""
	}
	return e.server.Addr()
}

// URL returns the URL of the API, http://host:port or https://host:port, or "" if it
// has no listener.
func (e *Engine) URL() string {
	switch {
	case e.server == nil:
		return ""
	case e.cfg.HTTP.TLSCert != "":
		return "https://" + e.Addr()
	}
	return "http://" + e.Addr()
}

// Brokers returns the addresses of the brokers, for Kafka clients.
func (e *Engine) Brokers() []string {
	if e.broker != nil {
		return []string{e.broker.Addr()}
	}
	return e.cfg.Kafka.Brokers
}

// Store returns the open database, for tests and reports.
func (e *Engine) Store() *rows.Tables { return e.store }

// Queue returns the open work queue, for tests.
func (e *Engine) Queue() queue.Queue { return e.queue }

// ViewAge returns the age of this instance's view of the promotions, for
// measurements.
func (e *Engine) ViewAge() time.Duration { return e.flow.ViewAge() }

// ActivePromotions returns how many active promotions this instance knows, for
// measurements.
func (e *Engine) ActivePromotions() int { return len(e.flow.Views()) }

// Coupons returns the coupon flow of this instance, for tests and measurements.
func (e *Engine) Coupons() *coupon.Flow { return e.coupons }
