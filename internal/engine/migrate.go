package engine

import (
	"context"
	"fmt"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/service"
)

// Migrate brings the schema of the configured database up to date. A folder of
// embedded data must not be in use by another process; a server of its own
// may be.
func Migrate(ctx context.Context, cfg config.Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	instance := service.InstanceID()
	if cfg.Database.URL == "" {
		lock, err := lockDir(cfg.Data.Dir, instance)
		if err != nil {
			return err
		}
		defer lock.release()
	}
	s, err := OpenStore(ctx, cfg, instance)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Migrate(ctx); err != nil {
		return fmt.Errorf("bring the database up to date: %w", err)
	}
	return nil
}
