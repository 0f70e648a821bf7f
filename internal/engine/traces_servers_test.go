package engine

import (
	"testing"

	"github.com/largesse/largesse/internal/config"
)

// One instance saves the targets, and another one pays them: the row carries the trace.
func TestATraceCrossesInstances(t *testing.T) {
	t.Parallel()
	useServers := onServers(t)
	shared := func(roles ...string) func(cfg *config.Config) {
		return func(cfg *config.Config) {
			useServers(cfg)
			cfg.Roles = roles
		}
	}
	r := newTraceRig(t)
	api := r.start(t, shared(config.RoleAPI, config.RoleIngest))
	payer := r.start(t, shared(config.RolePayout, config.RoleHousekeeping))
	calls := r.pay(t, api)
	api.Stop()
	payer.Stop()
	r.check(t, calls)
}
