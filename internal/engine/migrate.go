package engine

import (
	"context"
	"fmt"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/service"
)

// Migrate brings the schema of the configured database up to date. An embedded
// database must not be in use by another process; a PostgreSQL server may be.
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
		return fmt.Errorf("migrating the database failed: %w", err)
	}
	return nil
}
