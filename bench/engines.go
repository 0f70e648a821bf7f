package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	callTimeout = 10 * time.Second // of a call to the provider
	lease       = 15 * time.Second // after which the work of a killed worker is free, where it can be set
	retryAfter  = time.Second      // after a lost reply, where it can be set
)

// engine is one of the programs that are compared.
type engine struct {
	name string
	// prepare creates tables and queues; nothing of it is measured.
	prepare func(context.Context, job) error
	// work pays all targets, and continues until it is killed.
	work func(context.Context, job, *provider) error
	// paid is a query for the IDs of the targets that are recorded as paid.
	paid string
	// unsafe engines neither retry nor continue after a kill.
	unsafe bool
}

var engines = []engine{
	{name: "largesse", prepare: prepareLargesse, work: workLargesse, paid: `SELECT target_id FROM payouts WHERE state = 4`},
	{name: "river", prepare: prepareRiver, work: workRiver, paid: `SELECT target_id FROM outcomes`},
	{name: "asynq", prepare: prepareOutcomes, work: workAsynq, paid: `SELECT target_id FROM outcomes`},
	{name: "watermill", prepare: prepareOutcomes, work: workWatermill, paid: `SELECT target_id FROM outcomes`},
	{name: "bare", prepare: prepareBare, work: workBare, paid: `SELECT target_id FROM bare_payouts WHERE state = 4`, unsafe: true},
}

func engineNamed(name string) (engine, error) {
	for _, e := range engines {
		if e.name == name {
			return e, nil
		}
	}
	return engine{}, fmt.Errorf("there is no engine %q", name)
}

func prepareOutcomes(ctx context.Context, j job) error {
	db, err := pgx.Connect(ctx, j.Database)
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	_, err = db.Exec(ctx, outcomesTable)
	return err
}
