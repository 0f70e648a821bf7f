package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/largesse/largesse/internal/reward"
)

// bareGate is a hand-written gate: one script per request, with the effects of
// the real one (opening times, existing request, existing coupon, stock,
// ticket, line, request stream, counter), but without batches and generations,
// and without recovery from a loss. KEYS: template hash, line, holders, stream,
// stock. ARGV: user.
const bareGate = `local t = redis.call('HMGET', KEYS[1], 'opens', 'closes', 'total', 'live', 'next')
local now = redis.call('TIME')[1] * 1000
if now < tonumber(t[1]) or now >= tonumber(t[2]) then return -1 end
local ticket = redis.call('ZSCORE', KEYS[2], ARGV[1])
if ticket then return {tonumber(ticket), redis.call('ZRANK', KEYS[2], ARGV[1])} end
if redis.call('HGET', KEYS[3], ARGV[1]) then return -2 end
local waiting = redis.call('ZCARD', KEYS[2])
local room = tonumber(t[3]) - tonumber(t[4]) - waiting
if room <= 0 then return -3 end
local n = redis.call('HINCRBY', KEYS[1], 'next', 1)
redis.call('ZADD', KEYS[2], n, ARGV[1])
redis.call('XADD', KEYS[4], '*', 'requestId', '1:' .. ARGV[1], 'templateId', '1', 'userId', ARGV[1], 'ticket', n)
redis.call('SET', KEYS[5], room - 1)
return {n, waiting}`

// issueByHand is hand-written issuing: one transaction per coupon, which locks the
// template with FOR UPDATE, on several connections. It returns the time it took. The
// search path of the URL has the engine's tables.
func issueByHand(ctx context.Context, url string, connections, coupons int) (time.Duration, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return 0, fmt.Errorf("one transaction per coupon: %w", err)
	}
	cfg.MaxConns, cfg.MinConns = int32(connections), int32(connections) //nolint:gosec // a small number
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return 0, fmt.Errorf("one transaction per coupon: %w", err)
	}
	defer db.Close()
	if _, err := db.Exec(ctx, `DROP TABLE IF EXISTS bare_coupons, bare_templates;
CREATE TABLE bare_coupons (LIKE coupons INCLUDING ALL);
CREATE TABLE bare_templates (id int8 PRIMARY KEY, total int8 NOT NULL, issued int8 NOT NULL) WITH (fillfactor = 50);
INSERT INTO bare_templates VALUES (1, 1000000000, 0)`); err != nil {
		return 0, fmt.Errorf("one transaction per coupon: create its tables: %w", err)
	}
	began := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, connections)
	for w := range connections {
		wg.Go(func() {
			for n := w; n < coupons && errs[w] == nil; n += connections {
				errs[w] = issueOne(ctx, db, n)
			}
		})
	}
	wg.Wait()
	return time.Since(began), errors.Join(errs...)
}

func issueOne(ctx context.Context, db *pgxpool.Pool, n int) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // no effect after the commit
	var total, issued int64
	if err := tx.QueryRow(ctx, `SELECT total, issued FROM bare_templates WHERE id = 1 FOR UPDATE`).Scan(&total, &issued); err != nil {
		return err
	}
	if issued >= total {
		return errors.New("sold out")
	}
	if _, err := tx.Exec(ctx, `INSERT INTO bare_coupons (id, template_id, user_id, ticket, generation, slot, code, status, issued_at, version)
VALUES ($1, 1, $2, $3, 1, 1, $4, 0, now(), 1)`, n+1, fmt.Sprint("u", n), issued+1, reward.NewCouponCode()); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE bare_templates SET issued = issued + 1 WHERE id = 1`); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
