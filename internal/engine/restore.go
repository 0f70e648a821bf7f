package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/config"
)

// MarkRestored notes, in the database that the settings name, that it was
// restored from a backup: money may have moved that its rows do not know of.
// For a day from then on every payout is looked up at the provider before it is
// called: at once by instances that start, within ten seconds by others.
func MarkRestored(ctx context.Context, cfg config.Config) (time.Time, error) {
	s, err := OpenStore(ctx, cfg, "doctor")
	if err != nil {
		return time.Time{}, err
	}
	defer s.Close()
	now := time.Now()
	if err := s.RestoreMarkSet(ctx, now); err != nil {
		return time.Time{}, fmt.Errorf("note the restore: %w", err)
	}
	return now, nil
}
