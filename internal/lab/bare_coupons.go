package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/largesse/largesse/client"
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

// bareTemplate loads bareGate, and prepares a template for it. It returns what EVALSHA needs.
func (s *stage) bareTemplate(ctx context.Context, redis rueidis.Client, quantity int) (sha string, keys []string, err error) {
	if sha, err = redis.Do(ctx, redis.B().ScriptLoad().Script(bareGate).Build()).ToString(); err != nil {
		return "", nil, fmt.Errorf("load the hand-written script: %w", err)
	}
	for _, name := range []string{"template", "line", "holders", "stream", "stock"} {
		keys = append(keys, s.name+":{1}:"+name)
	}
	template := redis.B().Hset().Key(keys[0]).FieldValue().FieldValue("opens", "0").FieldValue("closes", "9e15").
		FieldValue("total", strconv.Itoa(quantity)).FieldValue("live", "0").FieldValue("next", "0").Build()
	if err := redis.Do(ctx, template).Error(); err != nil {
		return "", nil, fmt.Errorf("prepare the hand-written script: %w", err)
	}
	return sha, keys, nil
}

// bareHandler is a hand-written handler of coupon requests: it decodes the body, runs
// bareGate for the user, and writes a response of the shape of the real one.
func bareHandler(redis rueidis.Client, sha string, keys []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			UserID string `json:"userId"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.UserID == "" {
			http.Error(w, "userId is missing", http.StatusUnprocessableEntity)
			return
		}
		run := redis.B().Evalsha().Sha1(sha).Numkeys(int64(len(keys))).Key(keys...).Arg(body.UserID).Build()
		reply, err := redis.Do(r.Context(), run).ToMessage()
		status, media, answer := http.StatusConflict, "application/problem+json", any(&bareProblem)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		case reply.IsArray():
			place, err := reply.AsIntSlice()
			if err != nil || len(place) != 2 {
				http.Error(w, "the script returned no place in line", http.StatusInternalServerError)
				return
			}
			status, media = http.StatusAccepted, "application/json"
			answer = client.IssueRequest{ID: r.PathValue("templateId") + ":" + body.UserID, Status: "WAITING", Ticket: place[0], QueueRank: &place[1]}
		}
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer) // the caller may have left
	}
}

// bareProblem is the response of bareHandler after the last coupon.
var bareProblem = struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
}{"about:blank", "Conflict", http.StatusConflict, "every coupon of this template is taken", reward.CodeSoldOut}

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
