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

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
)

const (
	bareBatch     = 1000
	bareInserters = 2
	bareConsumers = 4
	barePayoutsID = 1 // promotion ID of all rows
)

// bare is a pipeline of the SQL and stream commands that a payout needs
// (insert, update to queued, XADD, XREADGROUP, update to succeeded, XACK and
// XDEL, in the same batches) without anything that makes them safe: no checks,
// counts, dispatch numbers or claims, and no provider. It is the yardstick for
// the speed of the engine.
type bare struct {
	postgresURL string // URL with the schema of the engine's tables in its search path
	redisURL    string
	prefix      string // prefix of the Redis keys
}

// run processes every target of a CSV file (targetId,userId,amount; no invalid
// lines) and returns the time it took.
func (b bare) run(ctx context.Context, targets io.Reader, total int) (time.Duration, error) {
	db, err := pgxpool.New(ctx, b.postgresURL)
	if err != nil {
		return 0, fmt.Errorf("bare pipeline: %w", err)
	}
	defer db.Close()
	if _, err := db.Exec(ctx, `DROP TABLE IF EXISTS bare_payouts; CREATE TABLE bare_payouts (LIKE payouts INCLUDING ALL)`); err != nil {
		return 0, fmt.Errorf("bare pipeline: create its table: %w", err)
	}
	redis, _, err := connectRedis(b.redisURL)
	if err != nil {
		return 0, fmt.Errorf("bare pipeline: %w", err)
	}
	defer redis.Close()
	key := b.prefix + "bare-stream"
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
			return consumeBare(ctx, db, redis, key, strconv.Itoa(i), func(n int) bool { return done.Add(int64(n)) >= int64(total) })
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

func consumeBare(ctx context.Context, db *pgxpool.Pool, redis rueidis.Client, key, consumer string, finished func(n int) bool) error {
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
