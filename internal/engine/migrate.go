package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store/postgres"
	"github.com/largesse/largesse/internal/store/rows"
)

// couponProtocolMigration begins version 2 of the coupon protocol. Instances of an
// older schema number the users in line in another way, so they must not issue
// coupons at the same time as newer ones.
const couponProtocolMigration = 11

// couponsMigration adds coupons. Instances of an earlier schema issue none.
const couponsMigration = 4

const upgradeInterval = time.Second

// Migrate brings the schema of the configured database up to date. An embedded
// database must not be in use by another process; a PostgreSQL server may be.
//
// If the coupon protocol changes with the schema, Migrate waits until no instance of
// the older schema is alive. It calls waiting with their names, at first and whenever
// these change, and ends with its error.
func Migrate(ctx context.Context, cfg config.Config, waiting func(instances []string) error) error {
	return offline(ctx, cfg, func(instance string, s *rows.Tables) error { return migrate(ctx, cfg, instance, s, waiting) })
}

// offline calls do with the configured database, which no other process may use if it is
// embedded.
func offline(ctx context.Context, cfg config.Config, do func(instance string, s *rows.Tables) error) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	instance := service.InstanceID()
	if cfg.Database.URL == "" {
		lock, err := parts.LockDir(cfg.Data.Dir, instance)
		if err != nil {
			return err
		}
		defer lock.Release()
	}
	s, err := parts.OpenStore(ctx, cfg, instance, nil, obs.Log{})
	if err != nil {
		return err
	}
	defer s.Close()
	return do(instance, s)
}

// OldestSchema is the oldest schema version that MigrateBack returns to.
const OldestSchema = 6

// MigrateBack takes the schema of the configured database back to an earlier version,
// so that a program of that version can use it. It refuses while an instance is
// alive, and a version that is not between OldestSchema and the present one. What
// later versions have added is removed with its rows.
func MigrateBack(ctx context.Context, cfg config.Config, version int64) error {
	if version < OldestSchema {
		return fmt.Errorf("the schema cannot go back to version %d: the oldest is %d", version, OldestSchema)
	}
	return offline(ctx, cfg, func(_ string, s *rows.Tables) error {
		if cfg.Database.URL != "" {
			alive, err := s.InstanceAlive(ctx)
			if err != nil {
				return fmt.Errorf("reading the instances failed: %w", err)
			}
			if len(alive) > 0 {
				return fmt.Errorf("these instances are alive: %s; stop them first, or wait 15 s if they were killed", strings.Join(alive, ", "))
			}
		}
		return s.MigrateBack(ctx, version)
	})
}

type migratedRows interface {
	Migrate(ctx context.Context) error
	InstanceAlive(ctx context.Context) ([]string, error)
}

func migrate(ctx context.Context, cfg config.Config, instance string, s migratedRows, waiting func([]string) error) error {
	if cfg.Database.URL != "" {
		if err := waitForOlder(ctx, cfg, instance, s, waiting); err != nil {
			return fmt.Errorf("waiting for instances of an older version: %w", err)
		}
	}
	if err := s.Migrate(ctx); err != nil {
		return fmt.Errorf("migrating the database failed: %w", err)
	}
	return nil
}

// waitForOlder waits until no instance of an older coupon protocol is alive.
func waitForOlder(ctx context.Context, cfg config.Config, instance string, s migratedRows, waiting func([]string) error) error {
	var told []string
	for {
		schema, err := postgres.Inspect(ctx, parts.PostgresConfig(cfg, instance, obs.Log{}))
		if err != nil || schema.SchemaVersion < couponsMigration || schema.SchemaVersion >= couponProtocolMigration {
			return err
		}
		// InstanceList reads columns that an older schema does not have.
		alive, err := s.InstanceAlive(ctx)
		if err != nil || len(alive) == 0 {
			return err
		}
		if !slices.Equal(alive, told) {
			if err := waiting(alive); err != nil {
				return err
			}
			told = alive
		}
		if !service.Sleep(ctx, upgradeInterval) {
			return context.Cause(ctx)
		}
	}
}
