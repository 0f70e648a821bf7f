package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// outcomesTable is where the engines without a table of their own record what was paid.
const outcomesTable = `CREATE TABLE outcomes (
	target_id       bigint      PRIMARY KEY,
	user_id         text        NOT NULL,
	amount          bigint      NOT NULL,
	transaction_key text        NOT NULL,
	paid_at         timestamptz NOT NULL
)`

const (
	outcomesMax     = 1000 // in a batch
	outcomesWriters = 2    // transactions at once
	outcomesLinger  = 2 * time.Millisecond
)

// outcomes records what was paid, in batches.
type outcomes struct {
	db      *pgxpool.Pool
	waiting chan outcome
}

type outcome struct {
	target
	key      string
	recorded chan error
}

func newOutcomes(ctx context.Context, db *pgxpool.Pool) *outcomes {
	o := &outcomes{db: db, waiting: make(chan outcome, outcomesMax)}
	for range outcomesWriters {
		go o.write(ctx)
	}
	return o
}

// record returns when the outcome of a target is committed.
func (o *outcomes) record(ctx context.Context, t target, key string) error {
	one := outcome{target: t, key: key, recorded: make(chan error, 1)}
	select {
	case o.waiting <- one:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-one.recorded:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *outcomes) write(ctx context.Context) {
	for {
		batch := o.gather(ctx)
		if len(batch) == 0 {
			return
		}
		err := o.insert(ctx, batch)
		for _, one := range batch {
			one.recorded <- err
		}
	}
}

// gather waits for an outcome, and collects those that arrive within the linger.
func (o *outcomes) gather(ctx context.Context) (batch []outcome) {
	select {
	case one := <-o.waiting:
		batch = append(batch, one)
	case <-ctx.Done():
		return nil
	}
	linger := time.After(outcomesLinger)
	for len(batch) < outcomesMax {
		select {
		case one := <-o.waiting:
			batch = append(batch, one)
		case <-linger:
			return batch
		}
	}
	return batch
}

func (o *outcomes) insert(ctx context.Context, batch []outcome) error {
	n := len(batch)
	ids, users, amounts, keys := make([]int64, n), make([]string, n), make([]int64, n), make([]string, n)
	for i, one := range batch {
		ids[i], users[i], amounts[i], keys[i] = one.ID, one.User, one.Amount, one.key
	}
	_, err := o.db.Exec(ctx, `INSERT INTO outcomes SELECT i, u, a, k, now()
		FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[]) AS x(i, u, a, k) ON CONFLICT DO NOTHING`, ids, users, amounts, keys)
	return err
}

// payAndRecord is what a worker of these engines does with a target.
func payAndRecord(ctx context.Context, p *provider, o *outcomes, t target) error {
	key, err := p.charge(ctx, t.ID)
	if err != nil {
		return err
	}
	return o.record(ctx, t, key)
}
