package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/store"
)

// readers are the connections that read.
type readers struct {
	*sql.DB
	viewers *sql.DB // for reads of store.ForViewer only
	metrics *obs.Metrics
	// waiting and viewersWaiting are the calls that wait for a connection of each pool.
	waiting, viewersWaiting atomic.Int64
}

// named is the reading connections for one call, with its name in the metrics.
type named struct {
	*readers
	what string
}

// as returns the reading connections for a call.
func (r *readers) as(what string) named { return named{r, what} }

// poolOf returns the state of a pool.
func poolOf(name string, db *sql.DB, waiting *atomic.Int64) obs.DatabasePool {
	stat := db.Stats()
	return obs.DatabasePool{
		Name: name, InUse: stat.InUse, Idle: stat.Idle, Max: stat.MaxOpenConnections, Waiting: int(waiting.Load()), Waited: stat.WaitDuration,
	}
}

// connection waits for a connection, and counts the wait meanwhile.
func connection(ctx context.Context, db *sql.DB, waiting *atomic.Int64) (*sql.Conn, error) {
	waiting.Add(1)
	defer waiting.Add(-1)
	return db.Conn(ctx)
}

func openReaders(path string, connections int, m *obs.Metrics) (*readers, error) {
	own, err := sql.Open("sqlite", dsn(path, "_pragma=query_only(1)"))
	if err != nil {
		return nil, err
	}
	own.SetMaxOpenConns(readersMax)
	own.SetMaxIdleConns(readersMax)
	viewers, err := sql.Open("sqlite", dsn(path, "_pragma=query_only(1)"))
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	viewers.SetMaxOpenConns(connections)
	viewers.SetMaxIdleConns(connections)
	return &readers{DB: own, viewers: viewers, metrics: m}, nil
}

func (r *readers) close() error { return errors.Join(r.Close(), r.viewers.Close()) }

// read calls fn with a connection. It keeps the limits of a read for a viewer.
func (r named) read(ctx context.Context, fn func(ctx context.Context, db *sql.Conn) error) error {
	began := time.Now()
	defer func() { r.metrics.DatabaseCalled(r.what, time.Since(began)) }()
	if !store.IsForViewer(ctx) {
		conn, err := connection(ctx, r.DB, &r.waiting)
		if err != nil {
			return unlessBusy(ctx, err)
		}
		defer conn.Close()
		return unlessBusy(ctx, fn(ctx, conn))
	}
	wait, cancel := context.WithTimeout(ctx, store.ViewerWait)
	conn, err := connection(wait, r.viewers, &r.viewersWaiting)
	cancel()
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return store.ViewersBusy(err)
	case err != nil:
		return err
	}
	defer conn.Close()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.ViewerTimeout)
	defer cancel()
	err = fn(within, conn)
	if err != nil && within.Err() != nil {
		return store.ViewerTimedOut(err)
	}
	return err
}
