package test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

// TestATakenPortIsFoundOutFirst: nothing is begun, and nothing left open.
func TestATakenPortIsFoundOutFirst(t *testing.T) {
	t.Parallel()
	taken := fixture.Must(net.Listen("tcp", fixture.FreeAddress(t)))(t)
	defer taken.Close()
	cfg := config.Default()
	cfg.Data.Dir, cfg.HTTP.Listen, cfg.Money.URL = filepath.Join(t.TempDir(), "data"), taken.Addr().String(), "http://127.0.0.1:1"
	var log fixture.Buffer
	lines := fixture.Must(obs.NewLog(&log, "info", "text"))(t)
	e := fixture.Must(engine.New(cfg, lines))(t)
	err := e.Start(t.Context())
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), cfg.HTTP.Listen) || !strings.Contains(err.Error(), "http.listen") {
		t.Errorf("Start = %v", err)
	}
	// The folder of the embedded broker is made and closed to others before anything is in it.
	left, err := os.ReadDir(cfg.Data.Dir)
	if err != nil || len(left) != 2 || left[0].Name() != "kafka" || left[1].Name() != "lock" || log.String() != "" {
		t.Errorf("%v, %v; log:\n%s", left, err, log.String())
	}
	if inside, err := os.ReadDir(filepath.Join(cfg.Data.Dir, "kafka")); err != nil || len(inside) != 0 {
		t.Errorf("%v, %v", inside, err)
	}
	taken.Close()
	if err := e.Start(t.Context()); err != nil {
		t.Fatalf("once the port is free: %v", err)
	}
	e.Stop()
}
