package parts

import (
	"testing"

	"github.com/largesse/largesse/internal/config"
)

func TestAPIConnections(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ set, files, want int }{
		{20_000, 1 << 20, 20_000},
		{20_000, 20_000, 20_000 - 2048 - 25 - filesAside},
		{10_000, 20_000, 10_000},
		{20_000, 1024, apiConnectionsMin},
	} {
		cfg := config.Default()
		cfg.HTTP.MaxConnections = tc.set
		if got := APIConnections(cfg, tc.files); got != tc.want {
			t.Errorf("%d set, %d files: %d, want %d", tc.set, tc.files, got, tc.want)
		}
	}
}
