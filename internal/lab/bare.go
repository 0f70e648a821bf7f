package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
)

const (
	bareBatch     = 1000
	bareInserters = 2
	bareConsumers = 4
	barePayoutsID = 1 // promotion ID of all rows
)

// bareTable creates the table of the bare pipeline: payouts as of commit 5ee7fa0, with all of
// its indexes. It does not follow the schema of the engine. A yardstick that became faster
// together with the engine would show nothing.
const bareTable = `DROP TABLE IF EXISTS bare_payouts;
CREATE TABLE bare_payouts (
	promotion_id        bigint      NOT NULL,
	target_id           bigint      NOT NULL CHECK (target_id >= 0),
	summary_id          bigint      NOT NULL CHECK (summary_id >= 0),
	amount              bigint      NOT NULL CHECK (amount >= 0),
	due_at              timestamptz NOT NULL,
	updated_at          timestamptz NOT NULL,
	first_dispatched_at timestamptz,
	settle_from         timestamptz,
	looked_at           timestamptz,
	dispatch            integer     NOT NULL CHECK (dispatch >= 0),
	attempts            integer     NOT NULL CHECK (attempts >= 0),
	state               smallint    NOT NULL CHECK (state BETWEEN 0 AND 6),
	maybe_called        boolean     NOT NULL,
	user_id             text        NOT NULL,
	voucher_code        text        NOT NULL,
	transaction_key     text        NOT NULL,
	error_code          text        NOT NULL,
	error_message       text        NOT NULL,
	handovers           smallint    NOT NULL DEFAULT 0,
	again               boolean     NOT NULL DEFAULT false,
	approval_round      integer     NOT NULL DEFAULT 1,
	trace               text,
	PRIMARY KEY (promotion_id, target_id),
	CHECK (state <> 3 OR (maybe_called AND settle_from IS NOT NULL)),
	CHECK (state <> 1 OR (dispatch > 0 AND first_dispatched_at IS NOT NULL))
);
CREATE INDEX ON bare_payouts (promotion_id, state, due_at, target_id) WHERE state < 4;
CREATE INDEX ON bare_payouts (due_at) WHERE state = 3;
CREATE INDEX ON bare_payouts (due_at) WHERE again;
CREATE INDEX ON bare_payouts (promotion_id, due_at, target_id) WHERE state = 0 AND dispatch > 0;
CREATE INDEX ON bare_payouts (promotion_id, state, target_id) WHERE state - 1 <> 0;
CREATE INDEX ON bare_payouts (promotion_id, error_code, state, target_id) WHERE error_code <> '';
CREATE INDEX ON bare_payouts (updated_at, promotion_id, target_id) WHERE state = 3;`

// Bare is a pipeline of the SQL and stream commands that a payout needs
// (insert, update to queued, XADD, XREADGROUP, update to succeeded, XACK and
// XDEL, in the same batches) without anything that makes them safe: no checks,
// counts, dispatch numbers or claims. It is the yardstick for the speed of the
// engine.
type Bare struct {
	PostgresURL string // its search path begins with a schema for the table
	RedisURL    string
	Prefix      string // of the Redis keys
	// Pay pays the targets of a batch; nil: there is no provider.
	Pay func(ctx context.Context, targets []int64) error
}

// Run processes every target of a CSV file (targetId,userId,amount; no invalid
// lines) and returns the time it took.
func (b Bare) Run(ctx context.Context, targets io.Reader, total int) (time.Duration, error) {
	db, err := pgxpool.New(ctx, b.PostgresURL)
	if err != nil {
		return 0, fmt.Errorf("bare pipeline: %w", err)
	}
	defer db.Close()
	if _, err := db.Exec(ctx, bareTable); err != nil {
		return 0, fmt.Errorf("bare pipeline: create its table: %w", err)
	}
	redis, _, err := connectRedis(b.RedisURL)
	if err != nil {
		return 0, fmt.Errorf("bare pipeline: %w", err)
	}
	defer redis.Close()
	key := b.Prefix + "bare-stream"
	redis.Do(ctx, redis.B().Del().Key(key).Build())
	defer redis.Do(context.WithoutCancel(ctx), redis.B().Del().Key(key).Build())
	if err := redis.Do(ctx, redis.B().XgroupCreate().Key(key).Group("g").Id("0").Mkstream().Build()).Error(); err != nil {
		return 0, fmt.Errorf("bare pipeline: %w", err)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	batches := make(chan bareRows, bareInserters)
	failures := make(chan error, 1+bareInserters+bareConsumers)
	var feeding, all sync.WaitGroup
	var done atomic.Int64
	run := func(f func() error) func() {
		return func() {
			if err := f(); err != nil {
				failures <- err
				cancel()
			}
		}
	}
	all.Go(run(func() error { defer close(batches); return readBare(ctx, targets, batches) }))
	for range bareInserters {
		feeding.Add(1)
		all.Go(run(func() error { defer feeding.Done(); return feedBare(ctx, db, redis, key, batches) }))
	}
	for i := range bareConsumers {
		all.Go(run(func() error {
			return b.consume(ctx, db, redis, key, strconv.Itoa(i), func(n int) bool { return done.Add(int64(n)) >= int64(total) })
		}))
	}
	all.Wait()
	close(failures)
	for err := range failures {
		if !errors.Is(err, context.Canceled) {
			return 0, fmt.Errorf("bare pipeline: %w", err)
		}
	}
	return time.Since(began), nil
}

// Copy copies every target of a file, as Run reads it, into the empty table, and returns the
// time it took.
func (b Bare) Copy(ctx context.Context, targets io.Reader) (time.Duration, error) {
	db, err := pgx.Connect(ctx, b.PostgresURL)
	if err != nil {
		return 0, fmt.Errorf("copy: %w", err)
	}
	defer func() { _ = db.Close(ctx) }()
	if _, err := db.Exec(ctx, bareTable); err != nil {
		return 0, fmt.Errorf("copy: create the table: %w", err)
	}
	began := time.Now()
	batches := make(chan bareRows, 1)
	var reading error
	go func() {
		defer close(batches)
		reading = readBare(ctx, targets, batches)
	}()
	var rows bareRows
	_, err = db.CopyFrom(ctx, pgx.Identifier{"bare_payouts"}, []string{
		"promotion_id", "target_id", "summary_id", "amount", "due_at", "updated_at", "dispatch", "attempts", "state",
		"maybe_called", "user_id", "voucher_code", "transaction_key", "error_code", "error_message",
	}, pgx.CopyFromFunc(func() ([]any, error) {
		if len(rows.ids) == 0 {
			var more bool
			if rows, more = <-batches; !more {
				return nil, reading
			}
		}
		row := []any{int64(barePayoutsID), rows.ids[0], int64(0), rows.amounts[0], began, began, int32(0), int32(0), int16(0), false, rows.users[0], "", "", "", ""}
		rows.ids, rows.amounts, rows.users = rows.ids[1:], rows.amounts[1:], rows.users[1:]
		return row, nil
	}))
	if err != nil {
		return 0, fmt.Errorf("copy: %w", err)
	}
	return time.Since(began), nil
}

// bareRows is a batch in columns.
type bareRows struct {
	ids, amounts []int64
	users        []string
}

func readBare(ctx context.Context, r io.Reader, out chan<- bareRows) error {
	lines := bufio.NewScanner(r)
	lines.Scan() // header
	var rows bareRows
	flush := func() error {
		select {
		case out <- rows:
			rows = bareRows{}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for lines.Scan() {
		cells := strings.Split(lines.Text(), ",")
		id, err := strconv.ParseInt(cells[0], 10, 64)
		if err != nil {
			return err
		}
		amount, err := strconv.ParseInt(cells[2], 10, 64)
		if err != nil {
			return err
		}
		rows.ids, rows.amounts, rows.users = append(rows.ids, id), append(rows.amounts, amount), append(rows.users, cells[1])
		if len(rows.ids) == bareBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil || len(rows.ids) == 0 {
		return err
	}
	return flush()
}

const (
	bareInsert = `INSERT INTO bare_payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, dispatch, attempts, state,
		maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
	SELECT $1, t, 0, a, now(), now(), 0, 0, 0, false, u, '', '', '', '' FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS x(t, a, u)
	ON CONFLICT DO NOTHING`
	bareQueue = `UPDATE bare_payouts p SET state = 1, dispatch = 1, due_at = now(), first_dispatched_at = now(), updated_at = now()
	FROM unnest($2::bigint[]) AS x(t) WHERE p.promotion_id = $1 AND p.target_id = x.t`
	bareFinish = `UPDATE bare_payouts p SET state = 4, attempts = 1, transaction_key = 'T-' || x.t, updated_at = now()
	FROM unnest($2::bigint[]) AS x(t) WHERE p.promotion_id = $1 AND p.target_id = x.t`
)

func feedBare(ctx context.Context, db *pgxpool.Pool, redis rueidis.Client, key string, batches <-chan bareRows) error {
	for rows := range batches {
		if _, err := db.Exec(ctx, bareInsert, barePayoutsID, rows.ids, rows.amounts, rows.users); err != nil {
			return err
		}
		if _, err := db.Exec(ctx, bareQueue, barePayoutsID, rows.ids); err != nil {
			return err
		}
		cmds := make(rueidis.Commands, len(rows.ids))
		for i, id := range rows.ids {
			message := fmt.Sprintf(`{"promotionId":1,"promotionSummaryId":0,"targetId":%d,"userId":%q,"amount":%d}`, id, rows.users[i], rows.amounts[i])
			cmds[i] = redis.B().Xadd().Key(key).Id("*").FieldValue().
				FieldValue("key", strconv.FormatInt(id, 10)).FieldValue("message", message).FieldValue("dispatch", "1").Build()
		}
		for _, res := range redis.DoMulti(ctx, cmds...) {
			if err := res.Error(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b Bare) consume(ctx context.Context, db *pgxpool.Pool, redis rueidis.Client, key, consumer string, finished func(n int) bool) error {
	for !finished(0) {
		got, err := redis.Do(ctx, redis.B().Xreadgroup().Group("g", consumer).Count(bareBatch/2).Streams().Key(key).Id(">").Build()).AsXRead()
		if rueidis.IsRedisNil(err) {
			select {
			case <-time.After(time.Millisecond):
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err != nil {
			return err
		}
		ids, targets := make([]string, len(got[key])), make([]int64, len(got[key]))
		for i, e := range got[key] {
			ids[i] = e.ID
			if targets[i], err = strconv.ParseInt(e.FieldValues["key"], 10, 64); err != nil {
				return err
			}
		}
		if b.Pay != nil {
			if err := b.Pay(ctx, targets); err != nil {
				return err
			}
		}
		if _, err := db.Exec(ctx, bareFinish, barePayoutsID, targets); err != nil {
			return err
		}
		for _, res := range redis.DoMulti(ctx,
			redis.B().Xack().Key(key).Group("g").Id(ids...).Build(), redis.B().Xdel().Key(key).Id(ids...).Build()) {
			if err := res.Error(); err != nil {
				return err
			}
		}
		finished(len(ids))
	}
	return nil
}
