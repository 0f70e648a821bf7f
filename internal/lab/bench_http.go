package lab

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/reward"
)

const (
	httpAtOnce = 256
	httpTurns  = 3
	// The limits of the printed ratios.
	soldOutRatioMax = 2.0
	issuedRatioMax  = 2.5
)

// overHandlers measures the processor time of this process for a coupon request over HTTP,
// compared with bareHandler. The handlers are called without sockets, in turns.
//
// Both sides read the request, decide with Redis and write the response; the Redis client
// counts on both. The engine also authenticates, limits, counts and logs, and its roles are
// api and issuer: "admitted and issued" ends when all coupons are committed, so that the
// issuer and the database client count, too. The bare handler never issues.
func (c CouponBench) overHandlers(ctx context.Context, s *stage, f *Figures) error {
	redis, _, err := connectRedis(s.Redis)
	if err != nil {
		return err
	}
	defer redis.Close()
	e, stop, err := s.coupons(ctx, "http", config.RoleAPI, config.RoleIssuer)
	if err != nil {
		return err
	}
	defer stop()
	for _, one := range []struct {
		name  string
		stock int
		most  float64
	}{{"sold out", 0, soldOutRatioMax}, {"admitted and issued", c.HTTP, issuedRatioMax}} {
		var bares, engines, ratios []float64 // microseconds per request
		for range httpTurns {
			bare, err := c.bareCost(ctx, s, redis, one.stock)
			if err != nil {
				return fmt.Errorf("bare handler, %s: %w", one.name, err)
			}
			cost, err := c.engineCost(ctx, e, one.stock)
			if err != nil {
				return fmt.Errorf("coupon request over HTTP, %s: %w", one.name, err)
			}
			bares, engines, ratios = append(bares, bare), append(engines, cost), append(ratios, cost/bare)
		}
		if slices.Contains(bares, 0) {
			f.note("coupon request over HTTP, "+one.name, "not measured: too few requests, or a system without /proc")
			continue
		}
		cost, bare, ratio := median(engines), median(bares), median(ratios)
		f.add("coupon request over HTTP, "+one.name, cost, fmt.Sprintf("%.1f µs of CPU, %s requests", cost, number(int64(c.HTTP))))
		f.add("bare handler with the hand-written script, "+one.name, bare, fmt.Sprintf("%.1f µs of CPU", bare))
		text := fmt.Sprintf("%.2f (at most %.1f)", ratio, one.most)
		if ratio > one.most {
			text = fmt.Sprintf("%.2f (TOO HIGH: at most %.1f)", ratio, one.most)
		}
		f.judge("ratio", ratio, text, ratio <= one.most)
	}
	return nil
}

// bareCost measures bareHandler.
func (c CouponBench) bareCost(ctx context.Context, s *stage, redis rueidis.Client, stock int) (float64, error) {
	sha, keys, err := s.bareTemplate(ctx, redis, stock)
	if err != nil {
		return 0, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/coupons/{templateId}/issue", bareHandler(redis, sha, keys))
	cost, err := c.cost(ctx, mux, 1, stock, func() error { return nil })
	_ = redis.Do(ctx, redis.B().Unlink().Key(keys...).Build()).Error() // the end of the run removes what is left
	return cost, err
}

// engineCost measures the handler of an engine, until all coupons are issued.
func (c CouponBench) engineCost(ctx context.Context, e *engine.Engine, stock int) (float64, error) {
	id, err := openTemplate(ctx, e, reward.CouponTemplate{TotalQuantity: int64(stock) + 1})
	if err == nil {
		err = untilIssued(ctx, e, id, 1)
	}
	if err != nil {
		return 0, err
	}
	return c.cost(ctx, e.Handler(), id, stock, func() error { return untilIssued(ctx, e, id, int64(stock)+1) })
}

// cost returns the processor time per request, in microseconds, until end returns. Exactly
// as many users as there is stock must be admitted, and the others refused.
func (c CouponBench) cost(ctx context.Context, h http.Handler, id reward.TemplateID, stock int, end func() error) (float64, error) {
	users := &crowd{people: c.HTTP, atOnce: httpAtOnce}
	var err error
	if users.request, err = throughHandler(ctx, h, id, c.HTTP); err != nil {
		return 0, err
	}
	runtime.GC() // the garbage of the preparation is not of the requests
	before := processorTime()
	if err := users.run(ctx); err != nil {
		return 0, err
	}
	if err := end(); err != nil {
		return 0, err
	}
	spent := processorTime() - before
	if admitted, soldOut := users.admitted.Load(), users.soldOut.Load(); admitted != int64(stock) || soldOut != int64(c.HTTP-stock) {
		return 0, fmt.Errorf("%d users were admitted and %d refused, with %d coupons for %d users", admitted, soldOut, stock, c.HTTP)
	}
	return float64(spent) / float64(time.Microsecond) / float64(c.HTTP), nil
}

// throughHandler requests coupons of a template through a handler, for u1, u2, … up to a
// number of users; openTemplate uses u0. The requests are ready before the first is sent.
func throughHandler(ctx context.Context, h http.Handler, id reward.TemplateID, people int) (request, error) {
	all := make([]*http.Request, people)
	for i := range all {
		body := strings.NewReader(fmt.Sprintf(`{"userId":"u%d"}`, i+1))
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://shop.example/v1/coupons/"+id.String()+"/issue", body)
		if err != nil {
			return nil, err
		}
		r.RequestURI, r.RemoteAddr = r.URL.Path, "127.0.0.1:1"
		r.Header.Set("Content-Type", "application/json")
		all[i] = r
	}
	return func(_ context.Context, user int64) (bool, time.Duration, error) {
		w := statusWriter{header: make(http.Header)}
		r := all[user]
		h.ServeHTTP(&w, r)
		switch w.status {
		case http.StatusAccepted, http.StatusCreated:
			return false, 0, nil
		case http.StatusConflict:
			return true, 0, nil
		case http.StatusServiceUnavailable:
			var err error
			r.Body, err = r.GetBody()
			return false, retryMin, err
		}
		return false, 0, fmt.Errorf("the response to user u%d has the status %d", user+1, w.status)
	}, nil
}

// statusWriter keeps only the status of a response.
type statusWriter struct {
	header http.Header
	status int
}

func (w *statusWriter) Header() http.Header         { return w.header }
func (w *statusWriter) WriteHeader(status int)      { w.status = status }
func (w *statusWriter) Write(p []byte) (int, error) { return len(p), nil }

// median returns the middle of some values.
func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }
