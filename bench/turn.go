package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// scenario is what happens in a turn.
type scenario struct {
	name         string
	what         string
	delay        time.Duration // of the provider
	losesReplies bool
	kills        bool // the worker, when half of the targets are paid
	size         size // of Largesse alone; 0: all engines pay the targets of the flag
}

// size is how much Largesse pays alone, in a single turn.
type size struct{ targets, promotions int }

func (sc scenario) alone() bool { return sc.size.targets > 0 }

var scenarios = []scenario{
	{name: "fast", what: "the provider answers at once"},
	{name: "slow", what: "the provider takes 200 ms", delay: 200 * time.Millisecond},
	{name: "lost", what: "the provider answers at once, and 1 % of its replies are lost", losesReplies: true},
	{name: "killed", what: "the provider takes 200 ms, and the worker is killed (`kill -9`) when half of the targets are paid", delay: 200 * time.Millisecond, kills: true},
	{name: "million", what: "1,000,000 targets", size: size{1_000_000, 1}},
	{name: "ten-million", what: "10,000,000 targets", size: size{10_000_000, 1}},
	{name: "hundred", what: "1,000,000 targets in 100 promotions at once", size: size{1_000_000, 100}},
	{name: "million-slow", what: "1,000,000 targets, the provider takes 200 ms", delay: 200 * time.Millisecond, size: size{1_000_000, 1}},
}

// Turn has the figures of one run of an engine.
type Turn struct {
	Seconds     float64 `json:"seconds"`              // from the start of the load to the last recorded outcome
	Recovery    float64 `json:"recovery,omitempty"`   // seconds from the kill to the last recorded outcome
	Rate        float64 `json:"payoutsPerSecond"`     // targets ÷ seconds
	ProcessCPU  float64 `json:"processMicroseconds"`  // of processor time per payout
	PostgresCPU float64 `json:"postgresMicroseconds"` // likewise
	RedisCPU    float64 `json:"redisMicroseconds"`    // likewise
	WAL         float64 `json:"walBytes"`             // per payout
	Stored      float64 `json:"storedBytes"`          // rows and indexes, per payout
	Memory      float64 `json:"peakMegabytes"`        // of the worker process
	Lost        int     `json:"lost"`                 // targets that were never paid
	Doubled     int     `json:"doubled"`              // charges of targets that were already paid
	Unknown     int     `json:"unknown"`              // targets that were paid, but not recorded as paid
}

func (t Turn) rate() float64 { return t.Rate }

const (
	pollInterval = 20 * time.Millisecond
	// settleTime is what an engine gets after the last outcome for work that remains, such
	// as acknowledgements. It is in no rate, but in all costs.
	settleTime = time.Second
)

// measure runs an engine once. An engine that is not done at the limit is measured as it is.
func (s *servers) measure(ctx context.Context, e engine, sc scenario, targets int, limit time.Duration) (t Turn, err error) {
	dir, err := os.MkdirTemp("", "largesse-bench-")
	if err != nil {
		return t, err
	}
	defer os.RemoveAll(dir)
	name := "bench_" + e.name
	database, err := s.newDatabase(ctx, name)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, s.clean(context.WithoutCancel(ctx), name)) }()
	j := job{
		Engine: e.name, Database: database, Redis: s.redisURL, Dir: dir, Targets: targets,
		Promotions: max(sc.size.promotions, 1), Delay: sc.delay, LosesReplies: sc.losesReplies, LoadsFirst: sc.kills,
	}
	if err := j.writeTargets(); err != nil {
		return t, err
	}
	books, err := openLedger(j.ledgerFile(), targets)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, books.close()) }()
	if err := runWorker(ctx, "prepare", j); err != nil {
		return t, err
	}
	db, err := pgx.Connect(ctx, database)
	if err != nil {
		return t, err
	}
	defer db.Close(ctx)
	if _, err := db.Exec(ctx, `CHECKPOINT`); err != nil { // so that each turn has as many pages to log in full
		return t, err
	}
	before, err := s.usage(ctx, name)
	if err != nil {
		return t, err
	}
	cpu, err := t.pay(ctx, e, sc, j, db, books, limit)
	if err != nil {
		return t, err
	}
	after, err := s.usage(ctx, name)
	if err != nil {
		return t, err
	}
	n := float64(targets)
	t.Rate = n / t.Seconds
	micros := func(d time.Duration) float64 { return float64(d.Microseconds()) / n }
	t.ProcessCPU, t.PostgresCPU, t.RedisCPU = micros(cpu), micros(after.postgres-before.postgres), micros(after.redis-before.redis)
	t.WAL, t.Stored = float64(after.wal-before.wal)/n, float64(after.stored-before.stored)/n
	return t, t.audit(ctx, e, db, books)
}

// pay runs the workers of a turn until all outcomes are recorded. It returns their processor time.
func (t *Turn) pay(ctx context.Context, e engine, sc scenario, j job, db *pgx.Conn, books ledger, limit time.Duration) (cpu time.Duration, err error) {
	w, err := startWorker(ctx, "work", j)
	if err != nil {
		return 0, err
	}
	defer func() { cpu += w.kill(t) }()
	if err := w.awaitBegin(); err != nil {
		return 0, err
	}
	began := time.Now()
	waiting, cancel := context.WithTimeoutCause(ctx, limit, errLimit)
	defer cancel()
	var killed time.Time
	if sc.kills {
		if err := w.until(waiting, func() (bool, error) { return books.charged() >= j.Targets/2, nil }); err != nil {
			return 0, err
		}
		killed = time.Now()
		cpu += w.kill(t)
		j.Resumed = true
		if w, err = startWorker(ctx, "work", j); err != nil {
			return cpu, err
		}
	}
	var count int
	err = w.until(waiting, func() (bool, error) {
		if books.charged() < j.Targets {
			return false, nil
		}
		err := db.QueryRow(ctx, `SELECT count(*) FROM (`+e.paid+`) AS paid`).Scan(&count)
		return count >= j.Targets, err
	})
	if err != nil && !errors.Is(err, errLimit) {
		return cpu, err
	}
	t.Seconds = time.Since(began).Seconds()
	if sc.kills {
		t.Recovery = time.Since(killed).Seconds()
	}
	time.Sleep(settleTime)
	return cpu, nil
}

var errLimit = errors.New("the turn took too long")

// audit compares the ledger of the provider with what the engine recorded.
func (t *Turn) audit(ctx context.Context, e engine, db *pgx.Conn, books ledger) error {
	rows, err := db.Query(ctx, e.paid)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	recorded := make([]bool, len(books))
	for _, id := range ids {
		recorded[id-1] = true
	}
	for i := range books {
		switch n := int(books.charges(int64(i + 1))); {
		case n == 0:
			t.Lost++
		case !recorded[i]:
			t.Unknown++
			fallthrough
		default:
			t.Doubled += n - 1
		}
	}
	return nil
}

// worker is a process that runs an engine.
type worker struct {
	cmd    *exec.Cmd
	output *bufio.Reader
	said   strings.Builder // its errors
	ended  chan struct{}
}

func startWorker(ctx context.Context, step string, j job) (*worker, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.CommandContext(ctx, program, "worker", step, string(text)), ended: make(chan struct{})}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it never outlives its parent
	w.cmd.Stderr = &w.said
	output, input, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	w.cmd.Stdout = input
	w.output = bufio.NewReader(output)
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = w.cmd.Wait() // its state says how it ended
		_ = input.Close()
		close(w.ended)
	}()
	return w, input.Close()
}

func runWorker(ctx context.Context, step string, j job) error {
	w, err := startWorker(ctx, step, j)
	if err != nil {
		return err
	}
	<-w.ended
	if !w.cmd.ProcessState.Success() {
		return w.failure()
	}
	return nil
}

func (w *worker) failure() error {
	return fmt.Errorf("the worker ended: %v\n%s", w.cmd.ProcessState, w.said.String())
}

// awaitBegin returns when the worker begins.
func (w *worker) awaitBegin() error {
	line, err := w.output.ReadString('\n')
	if strings.TrimSpace(line) != begun {
		<-w.ended
		return errors.Join(w.failure(), err)
	}
	go func() { _, _ = io.Copy(io.Discard, w.output) }()
	return nil
}

// until waits for a condition while the worker runs.
func (w *worker) until(ctx context.Context, so func() (bool, error)) error {
	for {
		asked := time.Now()
		if done, err := so(); done || err != nil {
			return err
		}
		select {
		case <-w.ended:
			return w.failure()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(max(pollInterval, 9*time.Since(asked))): // the poll costs at most a tenth of a core
		}
	}
}

// kill kills the worker, notes its peak memory, and returns its processor time.
func (w *worker) kill(t *Turn) time.Duration {
	t.Memory = max(t.Memory, peakMemory(w.cmd.Process.Pid)/(1<<20))
	_ = w.cmd.Process.Kill() // it may have ended
	<-w.ended
	return w.cmd.ProcessState.UserTime() + w.cmd.ProcessState.SystemTime()
}
