package engine

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
)

// MarkRestored records in the configured database that it was restored from a
// backup, so the provider may have made charges that its rows lack. For a day,
// every payout is looked up before it is charged. New instances do so immediately,
// and running ones within ten seconds. MarkRestored returns the time of the mark.
func MarkRestored(ctx context.Context, cfg config.Config) (time.Time, error) {
	if cfg.Database.URL == "" {
		if err := parts.CheckDataDir(cfg.Data.Dir, os.Getuid()); err != nil {
			return time.Time{}, err
		}
	}
	s, err := parts.OpenStore(ctx, cfg, "doctor", nil, obs.Log{})
	if err != nil {
		return time.Time{}, err
	}
	defer s.Close()
	now := time.Now()
	if err := s.RestoreMarkSet(ctx, now); err != nil {
		return time.Time{}, fmt.Errorf("recording the restore failed: %w", err)
	}
	return now, nil
}
