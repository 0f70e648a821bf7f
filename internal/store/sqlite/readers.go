package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/largesse/largesse/internal/store"
)

// readers are the connections that read.
type readers struct {
	*sql.DB
	viewers *sql.DB // for reads of store.ForViewer only
}

// reading is a connection, or a pool of them.
type reading interface {
	querier
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

func openReaders(path string) (*readers, error) {
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
	r := &readers{DB: own, viewers: viewers}
	r.limit(store.ViewerConnections)
	return r, nil
}

// limit sets the number of connections for viewers.
func (r *readers) limit(connections int) {
	r.viewers.SetMaxOpenConns(connections)
	r.viewers.SetMaxIdleConns(connections)
}

func (r *readers) close() error { return errors.Join(r.Close(), r.viewers.Close()) }

// read calls fn with a connection. It keeps the limits of a read for a viewer.
func (r *readers) read(ctx context.Context, fn func(ctx context.Context, db reading) error) error {
	if !store.IsForViewer(ctx) {
		return fn(ctx, r.DB)
	}
	wait, cancel := context.WithTimeout(ctx, store.ViewerWait)
	conn, err := r.viewers.Conn(wait)
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

// LimitViewers sets the number of connections for reads of store.ForViewer. The
// default is store.ViewerConnections.
func (s *Store) LimitViewers(connections int) { s.reader.limit(connections) }
