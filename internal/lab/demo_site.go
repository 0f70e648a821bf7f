package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
)

const (
	demoHeaderTimeout = 10 * time.Second
	demoWishesMax     = 4 // wishes of one kind that wait
)

// demoSite serves the demo on one address: its instance, which can be killed and
// started again, the console, which stays, and the controls below /demo, which only
// this process has. It is safe for concurrent use.
type demoSite struct {
	cfg     config.Config
	version string
	log     obs.Log
	sim     *moneysim.Server
	server  *http.Server
	addr    string
	cross   *http.CrossOriginProtection
	more    int // targets and users of one wish
	// people and drops are wishes for more of them, which the demo grants.
	people, drops chan struct{}
	lost          chan error // receives the reason if the instance must be stopped
	background    sync.WaitGroup

	mu       sync.Mutex     // protects what follows
	engine   *engine.Engine // of the last start
	cut      context.CancelFunc
	up       bool
	kills    int
	killable bool
	changed  chan struct{} // closed when up changes
}

// openSite starts the instance and serves it.
func openSite(ctx context.Context, cfg config.Config, version string, sim *moneysim.Server, more int, log obs.Log) (*demoSite, error) {
	s := &demoSite{
		cfg: cfg, version: version, log: log, sim: sim, more: more, cross: http.NewCrossOriginProtection(), lost: make(chan error, 1), changed: make(chan struct{}),
		people: make(chan struct{}, demoWishesMax), drops: make(chan struct{}, demoWishesMax),
	}
	pages, err := engine.Console(cfg)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.HTTP.Listen)
	if err != nil {
		return nil, fmt.Errorf("serve the demo: %w", err)
	}
	s.addr = l.Addr().String()
	if err := s.startEngine(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s.cfg.Kafka.EmbeddedListen = s.engine.Brokers()[0] // publishers find it again after a kill
	mux := http.NewServeMux()
	for pattern, page := range pages {
		mux.Handle(pattern, page)
	}
	mux.HandleFunc("GET /demo", s.show)
	mux.HandleFunc("POST /demo/{action}", s.act)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { s.instance().Handler().ServeHTTP(w, r) })
	s.server = &http.Server{Handler: s.guard(mux), ReadHeaderTimeout: demoHeaderTimeout}
	s.background.Go(func() { _ = s.server.Serve(l) }) // ends with close
	return s, nil
}

// startEngine starts an instance on the data so far.
func (s *demoSite) startEngine(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up {
		return nil
	}
	e, life, cut, err := launch(ctx, s.cfg, s.log, engine.WithVersion(s.version), engine.WithoutListener())
	if err != nil {
		return err
	}
	s.background.Go(func() {
		select {
		case err := <-e.Lost():
			if life.Err() == nil { // otherwise it is the kill
				select {
				case s.lost <- err:
				default: // the demo ends already
				}
			}
		case <-life.Done():
		}
	})
	s.engine, s.cut = e, cut
	s.setUp(true)
	return nil
}

// setUp records whether the instance is up. The caller must hold mu.
func (s *demoSite) setUp(up bool) {
	s.up = up
	close(s.changed)
	s.changed = make(chan struct{})
}

// kill ends the instance as a crash does: everything ends at once, with work pending.
func (s *demoSite) kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.up:
		return nil
	case !s.killable:
		return errors.New("not now: the demo prepares something or closes the books. Try again in a few seconds")
	}
	s.setUp(false)
	s.kills++
	s.cut()
	s.engine.Stop()
	return nil
}

// close stops everything.
func (s *demoSite) close() {
	_ = s.server.Close() // its connections have nothing to lose
	s.mu.Lock()
	if s.up {
		s.setUp(false)
		s.engine.Stop()
		s.cut()
	}
	s.mu.Unlock()
	s.background.Wait()
}

func (s *demoSite) instance() *engine.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine
}

// allowKills lets the instance be killed until calm.
func (s *demoSite) allowKills() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killable = true
}

// calm lets nobody kill the instance, and waits until it is up.
func (s *demoSite) calm(ctx context.Context) error {
	for {
		s.mu.Lock()
		s.killable = false
		up, changed := s.up, s.changed
		s.mu.Unlock()
		if up {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// disturbance returns how often the instance was killed, and whether it is up.
func (s *demoSite) disturbance() (kills int, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kills, s.up
}

// guard refuses what an instance without authentication refuses: pages of other
// origins, and host names that resolve to this machine.
func (s *demoSite) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		ip, noIP := netip.ParseAddr(host)
		if err != nil || (host != "localhost" && (noIP != nil || !ip.IsLoopback())) {
			refuseDemo(w, http.StatusMisdirectedRequest, "the demo accepts only localhost and loopback addresses as the host")
			return
		}
		if err := s.cross.Check(r); err != nil {
			refuseDemo(w, http.StatusForbidden, "pages of this origin may not do this")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// demoState is what the controls show.
type demoState struct {
	ProviderBroken bool `json:"providerBroken"`
	InstanceUp     bool `json:"instanceUp"`
	People         int  `json:"people"` // that one wish adds
}

func (s *demoSite) show(w http.ResponseWriter, _ *http.Request) {
	_, up := s.disturbance()
	writeDemo(w, http.StatusOK, demoState{ProviderBroken: s.sim.Faults().Away, InstanceUp: up, People: s.more})
}

// act does what a button of the console says.
func (s *demoSite) act(w http.ResponseWriter, r *http.Request) {
	var err error
	switch r.PathValue("action") {
	case "break-provider":
		err = s.sim.SetFaults(moneysim.Faults{Away: true})
	case "repair-provider":
		err = s.sim.SetFaults(demoFaults)
	case "kill-instance":
		err = s.kill()
	case "start-instance":
		err = s.startEngine(r.Context())
	case "add-people":
		err = wish(s.people)
	case "open-drop":
		err = wish(s.drops)
	default:
		refuseDemo(w, http.StatusNotFound, "the demo has no such control")
		return
	}
	if err != nil {
		refuseDemo(w, http.StatusConflict, err.Error())
		return
	}
	s.show(w, r)
}

// wish asks the demo for more.
func wish(wishes chan<- struct{}) error {
	select {
	case wishes <- struct{}{}:
		return nil
	default:
		return errors.New("enough of them wait already. Try again when they are paid or served")
	}
}

func refuseDemo(w http.ResponseWriter, status int, detail string) {
	writeDemo(w, status, map[string]any{"status": status, "detail": detail})
}

func writeDemo(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller may have left
}
