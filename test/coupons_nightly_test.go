//go:build nightly

package test

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// couponRig is instances that issue coupons, on servers of which all can be
// lost.
type couponRig struct {
	t         *testing.T
	database  string
	args      []string
	transport *http.Transport

	mu      sync.Mutex // protects members
	members []*process
}

func newCouponRig(t *testing.T, instances int, redis string) *couponRig {
	t.Helper()
	r := &couponRig{t: t, args: append(onServers(t), "--redis-url", redis, "--reconcile-interval", "2s", "--coupon-fallback-after", "1s")}
	r.database = flagOf(r.args, "--database-url")
	r.transport = &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(r.transport.CloseIdleConnections)
	for range instances {
		r.start()
	}
	return r
}

// prefix is the prefix of the rig's keys in Redis.
func (r *couponRig) prefix() string { return flagOf(r.args, "--redis-key-prefix") }

func (r *couponRig) start() *process { return r.startAs("api,issuer,housekeeping") }

func (r *couponRig) startAs(roles string) *process {
	r.t.Helper()
	p := serve(r.t, append([]string{"--data-dir", r.t.TempDir(), "--roles", roles}, r.args...)...)
	api := fixture.Must(client.New(p.address, client.Options{Transport: r.transport}))(r.t)
	p.api = api
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members = append(r.members, p)
	return p
}

// replace kills the oldest instance and starts another one.
func (r *couponRig) replace() {
	r.t.Helper()
	r.mu.Lock()
	oldest := r.members[0]
	r.members = r.members[1:]
	r.mu.Unlock()
	oldest.kill(r.t)
	r.start()
}

// any is one of the instances.
func (r *couponRig) any() *client.Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members[mathrand.IntN(len(r.members))].api
}

func (r *couponRig) create(t client.NewTemplate) string {
	r.t.Helper()
	t.Name = "drop"
	var made client.Template
	fixture.Until(r.t, "an instance creates a template", func() (ok bool) {
		var err error
		made, err = r.any().CreateTemplate(r.t.Context(), t)
		if p := (*client.Problem)(nil); errors.As(err, &p) {
			r.t.Fatalf("create a template: %v", err)
		}
		return err == nil
	})
	return made.ID
}

// ask repeats a request until the response is not "try again"; ok is false when
// the answer was a refusal, which has the code.
func (r *couponRig) ask(ctx context.Context, template, user string) (req client.IssueRequest, code string) {
	for ctx.Err() == nil {
		req, err := r.any().IssueCoupon(ctx, template, user, 0)
		var p *client.Problem
		switch {
		case err == nil:
			return req, ""
		case errors.As(err, &p) && p.Status < 500 && p.Status != http.StatusTooManyRequests:
			return req, p.Code
		}
		time.Sleep(20 * time.Millisecond) // as its answer says, or until another instance is there
	}
	return req, "NO_ANSWER"
}

func (r *couponRig) db() *pgx.Conn {
	r.t.Helper()
	db := fixture.Must(pgx.Connect(r.t.Context(), r.database))(r.t)
	r.t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

// number reads one number.
func (r *couponRig) number(db *pgx.Conn, sql string, args ...any) int64 {
	r.t.Helper()
	var n int64
	if err := db.QueryRow(r.t.Context(), sql, args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// until polls a number until it is what it should be.
func (r *couponRig) until(db *pgx.Conn, want int64, sql string, args ...any) {
	r.t.Helper()
	fixture.Until(r.t, fmt.Sprintf("%s is %d", sql, want), func() bool { return r.number(db, sql, args...) == want })
}

// historySQL keeps every change of a template and of its coupons, as the
// database commits them.
const historySQL = `
CREATE TABLE template_history (n bigserial, template_id int8, version int8, live int8, issued_total int8, total int8, settled int8, generation int8, path text);
CREATE TABLE coupon_history (n bigserial, template_id int8, id int8, user_id text, status int2, held bool);
CREATE FUNCTION note_template() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO template_history (template_id, version, live, issued_total, total, settled, generation, path)
  VALUES (NEW.id, NEW.version, NEW.live, NEW.issued_total, NEW.total_quantity, NEW.settled, NEW.generation, NEW.path); RETURN NULL; END $$;
CREATE FUNCTION note_coupon() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO coupon_history (template_id, id, user_id, status, held) VALUES (NEW.template_id, NEW.id, NEW.user_id, NEW.status, NEW.slot IS NOT NULL);
  RETURN NULL; END $$;
CREATE TRIGGER note AFTER UPDATE ON coupon_templates FOR EACH ROW EXECUTE FUNCTION note_template();
CREATE TRIGGER note AFTER INSERT OR UPDATE ON coupons FOR EACH ROW EXECUTE FUNCTION note_coupon();`

// stormLasts is how long a storm lasts per mode: long enough for each fault once. `make
// chaos` asks for more.
func stormLasts(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("LARGESSE_STORM")
	if text == "" {
		return 24 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 24*time.Second {
		t.Fatalf("LARGESSE_STORM=%q is no duration from 24s", text)
	}
	return d
}

// TestNightlyCouponStorm: in each mode people ask, leave the line, confirm, cancel, use and ask again, while
// instances are killed, one hangs for longer than its lease, and Redis loses
// everything, and holds end early: never more live than there is, no user has more
// than their limit, a confirmed coupon stays and one whose hold ended never comes back, the
// counters are the rows, a place that is free can be had.
func TestNightlyCouponStorm(t *testing.T) {
	for _, mode := range []string{"STREAM", "KAFKA", "SYNC"} {
		t.Run(mode, func(t *testing.T) { couponStorm(t, mode) })
	}
}

func couponStorm(t *testing.T, mode string) {
	t.Helper()
	const stock, limit, people = 50, 2, 200
	lasts := stormLasts(t)
	redis := fixture.Own(t, fleet.NewRedis)
	r := newCouponRig(t, 3, redis.Address())
	db := r.db()
	fixture.Must(db.Exec(t.Context(), historySQL))(t)
	id := r.create(client.NewTemplate{TotalQuantity: stock, PerUserLimit: limit, HoldSeconds: 2, Mode: mode})
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var wg sync.WaitGroup
	var asked, left, cancelled, used, ranks atomic.Int64
	var holds heldCoupons
	for w := range 40 {
		wg.Go(func() {
			for ctx.Err() == nil {
				user := fmt.Sprint("u", (w*7+mathrand.IntN(40))%people)
				req, code := r.ask(ctx, id, user)
				asked.Add(1)
				var coupon string
				switch {
				case code != "" || req.Duplicate && req.Status != "WAITING":
					continue
				case req.Status == "ISSUED": // in SYNC mode, or through the database
					coupon = req.Coupon.ID
				case mathrand.IntN(4) == 0 && r.any().LeaveLine(ctx, req.ID) == nil:
					left.Add(1)
					continue
				default:
					coupon = r.follow(ctx, req, &ranks)
				}
				switch {
				case coupon == "", mathrand.IntN(8) == 0: // its hold ends
				case mathrand.IntN(8) > 0 && !r.confirm(ctx, coupon, &holds): // others cancel while it is held
				case mathrand.IntN(10) == 0:
					if _, err := r.any().UseCoupon(ctx, coupon); err == nil {
						used.Add(1)
					}
				default:
					if r.cancel(ctx, coupon, &holds) {
						cancelled.Add(1)
					}
				}
			}
		})
	}
	for n := 0; ctx.Err() == nil; n++ {
		select {
		case <-time.After(4 * time.Second):
		case <-ctx.Done():
			continue
		}
		switch n % 4 {
		case 0:
			r.replace()
		case 1:
			tell(t, redis, "FLUSHALL")
		case 2:
			r.members[0].suspend(t, 3*time.Second) // nobody else changes the members
		case 3: // as if the clock of the database were set forward
			fixture.Must(db.Exec(t.Context(), `UPDATE coupons SET held_until = held_until - interval '1 hour' WHERE status = 4`))(t)
		}
	}
	wg.Wait()
	fixture.Must(r.any().ChangeTemplate(t.Context(), id, client.TemplateChange{HoldSeconds: client.Clear[int64]()}))(t)
	r.until(db, 0, `SELECT count(*) FROM coupons WHERE status = 4`)
	holds.check(r, db)
	t.Logf("%d asks, %d leaves, %d cancels, %d uses, %d ranks seen", asked.Load(), left.Load(), cancelled.Load(), used.Load(), ranks.Load())
	if left.Load() < 20 && mode != "SYNC" { // where nobody waits
		t.Errorf("only %d leaves", left.Load())
	}
	if cancelled.Load() < 100 {
		t.Errorf("only %d cancels", cancelled.Load())
	}
	r.settled(db, id)
	if n := r.number(db, `SELECT count(*) FROM template_history WHERE live > total OR live < 0`); n != 0 {
		t.Errorf("%d times more lived than there is", n)
	}
	if n := r.number(db, `SELECT count(*) FROM (SELECT version - lag(version) OVER (ORDER BY n) AS step,
  issued_total - lag(issued_total) OVER (ORDER BY n) AS more, settled - lag(settled) OVER (ORDER BY n) AS on FROM template_history WHERE template_id = $1) h
WHERE step NOT IN (0, 1) OR more < 0 OR h.on < 0`, id); n != 0 {
		t.Errorf("%d steps of a version, of issuedTotal or of settled are wrong", n)
	}
	// The holding of each user after each change of their coupons.
	if n := r.number(db, `SELECT count(*) FROM (
  SELECT sum(CASE WHEN held AND first THEN 1 WHEN NOT held AND was THEN -1 ELSE 0 END) OVER (PARTITION BY user_id ORDER BY n) AS has FROM (
    SELECT n, user_id, held, lag(held) OVER (PARTITION BY id ORDER BY n) IS NULL AS first,
      coalesce(lag(held) OVER (PARTITION BY id ORDER BY n), false) AS was FROM coupon_history) c) u WHERE has > $1`, limit); n != 0 {
		t.Errorf("%d times a user had more than their limit", n)
	}
	if rows, total := r.number(db, `SELECT count(*) FROM coupons WHERE template_id = $1`, id), r.number(db, `SELECT issued_total FROM coupon_templates WHERE id = $1`, id); rows != total {
		t.Errorf("%d rows, issuedTotal %d", rows, total)
	}
	// In KAFKA mode, the number of a request that Redis has lost stays free. In the others, a
	// request that left and was then lost with Redis's data leaves its ticket to another.
	if holes := r.number(db, `WITH t AS (SELECT ticket, generation, '' AS reason FROM coupons WHERE template_id = $1
  UNION ALL SELECT ticket, generation, reason FROM coupon_rejections WHERE template_id = $1)
SELECT (SELECT settled FROM coupon_templates WHERE id = $1) - count(DISTINCT ticket) FROM t
WHERE ticket <= (SELECT settled FROM coupon_templates WHERE id = $1)`, id); holes != 0 && mode != "KAFKA" {
		t.Errorf("%d tickets are neither a coupon nor a refusal", holes)
	}
	// A coupon that was issued through the database while the consumers of KAFKA mode lagged can
	// have the ticket of a record that they settled later.
	if twice := r.number(db, `WITH t AS (SELECT ticket, generation FROM coupons WHERE template_id = $1
  UNION ALL SELECT ticket, generation FROM coupon_rejections WHERE template_id = $1 AND reason <> 'LEFT'),
  through AS (SELECT DISTINCT generation FROM template_history WHERE template_id = $1 AND path = 'DATABASE'),
  sequences AS (SELECT ticket, $2 AND generation IN (SELECT generation FROM through) AS apart FROM t)
SELECT count(*) - count(DISTINCT (ticket, apart)) + count(*) FILTER (WHERE ticket > (SELECT settled FROM coupon_templates WHERE id = $1)) FROM sequences`,
		id, mode == "KAFKA"); twice != 0 {
		t.Errorf("%d tickets are settled twice, or above the settled ones", twice)
	}
	if over := r.number(db, `SELECT count(*) FROM coupon_templates WHERE granted < used OR live + granted - used > total_quantity`); over != 0 {
		t.Errorf("more is promised than there is")
	}
}

// heldCoupons are the answers to confirmations.
type heldCoupons struct {
	mu               sync.Mutex // protects what follows
	confirmed, ended []int64    // ids
	cancelling       []int64    // those that a user began to cancel
}

// confirm confirms a coupon until it has an answer, sometimes late, and reports
// whether it is ISSUED.
func (r *couponRig) confirm(ctx context.Context, coupon string, holds *heldCoupons) bool {
	id, err := strconv.ParseInt(coupon, 10, 64)
	if err != nil {
		r.t.Error(err)
	}
	time.Sleep(time.Duration(mathrand.IntN(4)*mathrand.IntN(900)) * time.Millisecond) // the user thinks, some for too long
	for ctx.Err() == nil {
		c, err := r.any().ConfirmCoupon(ctx, coupon)
		var p *client.Problem
		switch {
		case err == nil && c.Status == "ISSUED":
			holds.mu.Lock()
			defer holds.mu.Unlock()
			holds.confirmed = append(holds.confirmed, id)
			return true
		case errors.As(err, &p) && p.Code == "HOLD_EXPIRED":
			holds.mu.Lock()
			defer holds.mu.Unlock()
			holds.ended = append(holds.ended, id)
			return false
		case errors.As(err, &p) && (p.Code == "COUPON_CANCELLED" || p.Code == "COUPON_USED"):
			return false // another request of the user has ended it
		case err == nil:
			r.t.Errorf("the confirmation of coupon %s: %+v", coupon, c)
			return false
		}
		time.Sleep(10 * time.Millisecond) // until another instance is there
	}
	return false
}

// cancel cancels a coupon, and reports whether the answer says so. Without an answer it may
// be cancelled, too.
func (r *couponRig) cancel(ctx context.Context, coupon string, holds *heldCoupons) bool {
	id, err := strconv.ParseInt(coupon, 10, 64)
	if err != nil {
		r.t.Error(err)
	}
	holds.mu.Lock()
	holds.cancelling = append(holds.cancelling, id)
	holds.mu.Unlock()
	_, err = r.any().CancelCoupon(ctx, coupon)
	return err == nil
}

// check compares the answers with what has become of the coupons.
func (h *heldCoupons) check(r *couponRig, db *pgx.Conn) {
	r.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	r.t.Logf("%d confirmations, %d too late", len(h.confirmed), len(h.ended))
	if len(h.confirmed) < 100 || len(h.ended) < 10 {
		r.t.Errorf("only %d confirmations and %d that were too late", len(h.confirmed), len(h.ended))
	}
	if n := r.number(db, `SELECT count(*) FROM coupons WHERE id = ANY ($1) AND cancel_reason <> ''`, h.confirmed); n != 0 {
		r.t.Errorf("the holds of %d confirmed coupons have ended", n)
	}
	// Another request of the user may have cancelled one between the end of its hold and its expiry.
	if n := r.number(db, `SELECT count(*) FROM coupons WHERE id = ANY ($1) AND NOT (status = 2 AND
  (cancel_reason = 'HOLD_EXPIRED' OR cancel_reason = '' AND id = ANY ($2)))`, h.ended, h.cancelling); n != 0 {
		r.t.Errorf("%d coupons are alive that nobody could confirm", n)
	}
}

// follow looks at a request until it is decided, or lost; the rank of one ticket
// never rises. It returns the id of the coupon.
func (r *couponRig) follow(ctx context.Context, req client.IssueRequest, ranks *atomic.Int64) (coupon string) {
	for ctx.Err() == nil {
		now, err := r.any().IssueRequest(ctx, req.ID)
		var p *client.Problem
		switch {
		case errors.As(err, &p) && p.Code == "REQUEST_UNKNOWN":
			return ""
		case err != nil:
			time.Sleep(10 * time.Millisecond) // until another instance is there
			continue
		case now.Status == "ISSUED":
			return now.Coupon.ID
		case now.Status == "REJECTED", now.Status == "LEFT":
			return ""
		case now.QueueRank != nil && req.QueueRank != nil && now.Ticket == req.Ticket && *now.QueueRank > *req.QueueRank:
			r.t.Errorf("%s: ticket %d went from rank %d to %d", req.ID, now.Ticket, *req.QueueRank, *now.QueueRank)
		}
		ranks.Add(1)
		req = now
	}
	return ""
}

// settled waits until no user waits and gate and rows agree, and checks that what
// is free can be had.
func (r *couponRig) settled(db *pgx.Conn, id string) {
	r.t.Helper()
	fixture.Until(r.t, "nobody waits", func() bool {
		t, err := r.any().Template(r.t.Context(), id)
		return err == nil && t.Counters.Waiting == 0
	})
	began := time.Now()
	free := r.number(db, `SELECT total_quantity - live FROM coupon_templates WHERE id = $1`, id)
	for n := int64(0); n < free; {
		user := fmt.Sprintf("late%d", n)
		if _, code := r.ask(r.t.Context(), id, user); code == "" {
			n++
		} else if time.Since(began) > 5*time.Second {
			r.t.Errorf("%s with %d of %d free places had, after %v", code, n, free, time.Since(began))
			break
		}
	}
	r.until(db, 0, `SELECT total_quantity - live FROM coupon_templates WHERE id = $1`, id)
	r.until(db, 1, `SELECT count(*) FROM coupon_templates t WHERE id = $1
  AND live = (SELECT count(*) FROM coupons WHERE template_id = $1 AND status <> 2)`, id)
	report, err := r.any().ReconcileTemplate(r.t.Context(), id, false)
	if err != nil || len(report.Drifts) > 0 {
		r.t.Errorf("reconcile: %+v, %v", report, err)
	}
}
