package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// costs are the costs of this process, and of the servers, since their start.
type costs struct {
	cpu          time.Duration // of this process; 0 on systems without /proc
	transactions int64         // of the database, including those of other users
	commands     int64         // to Redis, including those of other users
}

// readCosts reads the costs until now.
func readCosts(ctx context.Context, postgresURL, redisURL string) (c costs, err error) {
	c.cpu = processorTime()
	if c.transactions, err = transactions(ctx, postgresURL); err != nil {
		return c, fmt.Errorf("read the transactions of the database: %w", err)
	}
	if c.commands, err = commands(ctx, redisURL); err != nil {
		return c, fmt.Errorf("read the commands to Redis: %w", err)
	}
	return c, nil
}

func transactions(ctx context.Context, url string) (n int64, err error) {
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close(ctx) }()
	err = db.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`).Scan(&n)
	return n, err
}

// commands counts all commands but those of connecting and of this count.
func commands(ctx context.Context, url string) (total int64, err error) {
	client, _, err := connectRedis(url)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	info, err := client.Do(ctx, client.B().Info().Section("commandstats").Build()).ToString()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		command, figures, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !found || command == "hello" || command == "info" || strings.HasPrefix(command, "client") {
			continue
		}
		calls, _, _ := strings.Cut(figures, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// processorTime returns the processor time that this process has used; 0 on systems without
// /proc.
func processorTime() time.Duration {
	raw, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	// The name in parentheses may hold anything. User and system time are the 12th
	// and 13th field after it, in hundredths of a second.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	ticks := int64(0)
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

type registrar interface {
	PromotionRegister(ctx context.Context, rs []store.Registration, approvalAbove reward.Limits, now time.Time) ([]reward.Promotion, error)
}

// startPromotions makes RUNNING promotions with the IDs from first to last. Each
// waits for one target.
func startPromotions(ctx context.Context, rows registrar, first, last int) error {
	expected := int64(1)
	for ; first <= last; first += store.BatchMax {
		var rs []store.Registration
		for id := first; id <= min(last, first+store.BatchMax-1); id++ {
			rs = append(rs, store.Registration{ID: reward.PromotionID(id), Type: reward.Point, Started: true, ExpectedCount: &expected})
		}
		if _, err := rows.PromotionRegister(ctx, rs, reward.Limits{}, time.Now()); err != nil {
			return err
		}
	}
	return nil
}
