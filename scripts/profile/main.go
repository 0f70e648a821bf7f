// Command profile runs a benchmark and writes what the process and the database spent:
// cpu.pprof, allocs.pprof and statements.txt in bin/profile/NAME. The servers are those
// of scripts/up, whose statistics it resets:
//
//	go run ./scripts/up -- go run ./scripts/profile [-targets 1000000] payouts
//	go tool pprof -top bin/profile/payouts/cpu.pprof
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/lab"
)

type benchmark func(context.Context, lab.Bench) (lab.Figures, error)

func main() {
	targets := flag.Int("targets", 200_000, "`targets` of payouts, or users of coupons")
	flag.Parse()
	benchmarks := map[string]benchmark{
		"payouts": lab.PayoutBench{Targets: *targets}.Run,
		"coupons": lab.CouponBench{Users: *targets, AtOnce: 1024, ByHand: 1000, Tool: "redis-benchmark"}.Run,
	}
	name := flag.Arg(0)
	run, ok := benchmarks[name]
	if !ok || flag.NArg() > 1 {
		fmt.Fprintln(os.Stderr, "usage: go run ./scripts/up -- go run ./scripts/profile [-targets N] payouts|coupons")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := profile(ctx, filepath.Join("bin", "profile", name), run); err != nil {
		fmt.Fprintf(os.Stderr, "profile: %s: %v\n", name, err)
		os.Exit(1)
	}
}

func profile(ctx context.Context, dir string, run benchmark) (err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	on := lab.Bench{
		Database: os.Getenv("LARGESSE_TEST_POSTGRES"), Redis: os.Getenv("LARGESSE_TEST_REDIS"),
		Brokers: strings.Split(os.Getenv("LARGESSE_TEST_KAFKA"), ","), Log: os.Stderr, Progress: func(string, int64, int64) {},
	}
	db, err := pgx.Connect(ctx, on.Database)
	if err != nil {
		return fmt.Errorf("connect to the PostgreSQL of scripts/up: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()
	if _, err := db.Exec(ctx, countStatements); err != nil {
		return fmt.Errorf("count statements: %w", err)
	}
	var figures lab.Figures
	err = write(dir, "cpu.pprof", func(w io.Writer) error {
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
		figures, err = run(ctx, on)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Println("profiles in", dir)
	for _, f := range figures {
		fmt.Printf("  %-50s %s\n", f.Name, f.Text)
	}
	return errors.Join(
		write(dir, "allocs.pprof", func(w io.Writer) error { return pprof.Lookup("allocs").WriteTo(w, 0) }),
		write(dir, "statements.txt", func(w io.Writer) error { return writeStatements(ctx, db, w) }))
}

func write(dir, name string, content func(io.Writer) error) (err error) {
	file, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return content(file)
}

const (
	countStatements = `CREATE EXTENSION IF NOT EXISTS pg_stat_statements;
ALTER ROLE CURRENT_USER SET pg_stat_statements.track = 'top';
SELECT pg_stat_statements_reset()`

	costliest = `SELECT total_exec_time, calls, rows, shared_blks_hit, shared_blks_dirtied, wal_records, wal_bytes::int8,
  left(regexp_replace(query, '\s+', ' ', 'g'), 200)
FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 50`
)

func writeStatements(ctx context.Context, db *pgx.Conn, w io.Writer) error {
	_, err := fmt.Fprintf(w, "%10s %9s %10s %11s %10s %11s %13s  %s\n", "ms", "calls", "rows", "blocks hit", "dirtied", "WAL records", "WAL bytes", "statement")
	if err != nil {
		return err
	}
	found, _ := db.Query(ctx, costliest) // ForEachRow returns its error
	var ms float64
	var calls, rows, hit, dirtied, records, wal int64
	var text string
	_, err = pgx.ForEachRow(found, []any{&ms, &calls, &rows, &hit, &dirtied, &records, &wal, &text}, func() error {
		_, err := fmt.Fprintf(w, "%10.0f %9d %10d %11d %10d %11d %13d  %s\n", ms, calls, rows, hit, dirtied, records, wal, text)
		return err
	})
	return err
}
