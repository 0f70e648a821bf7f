package engine

import (
	"context"
	"testing"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/service"
)

func TestMain(m *testing.M) { fixture.Main(m) }

// run runs f in the background, as Engine.background does. The caller stops it.
func run(t *testing.T, f func(ctx context.Context)) *service.Base {
	t.Helper()
	var running service.Base
	running.Start(t.Context(), f)
	return &running
}

// onServers returns a function that configures instances which share a schema of
// PostgreSQL and keys of Redis.
func onServers(t *testing.T) func(cfg *config.Config) {
	t.Helper()
	schema, redis := fixture.NewSchema(t), fixture.Address(t, fleet.VariableRedis)
	keys := fixture.Keys(t, redis)
	return func(cfg *config.Config) {
		cfg.Database.URL, cfg.Database.MaxConnections, cfg.Coupon.ConsumerConcurrency = schema, 6, 2
		cfg.Redis.URL, cfg.Redis.KeyPrefix = redis, keys
	}
}
