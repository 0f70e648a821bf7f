package engine

import (
	"context"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
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
