package redisgate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// reply is read from front to back; the first thing that is not as the script
// promises is kept as the error.
type reply struct {
	rows []rueidis.RedisMessage
	err  error
}

func newReply(m rueidis.RedisMessage) *reply {
	rows, err := m.ToArray()
	return &reply{rows: rows, err: err}
}

func (r *reply) more() bool { return r.err == nil && len(r.rows) > 0 }

func (r *reply) take() (rueidis.RedisMessage, bool) {
	if r.err == nil && len(r.rows) == 0 {
		r.err = fmt.Errorf("the reply is too short")
	}
	if r.err != nil {
		return rueidis.RedisMessage{}, false
	}
	m := r.rows[0]
	r.rows = r.rows[1:]
	return m, true
}

// number reads a number, also one that came as text.
func (r *reply) number() int64 {
	m, ok := r.take()
	if !ok {
		return 0
	}
	n, err := m.AsInt64()
	if err != nil {
		r.err = err
	}
	return n
}

func (r *reply) text() string {
	m, ok := r.take()
	if !ok {
		return ""
	}
	s, err := m.ToString()
	if err != nil {
		r.err = err
	}
	return s
}

// done says what was wrong with the reply of a script.
func (r *reply) done(s *script, id reward.TemplateID) error {
	if r.err == nil && len(r.rows) > 0 {
		r.err = fmt.Errorf("the reply has %d elements too many", len(r.rows))
	}
	if r.err != nil {
		return fmt.Errorf("redisgate: %s %s: %w", s.name, id, r.err)
	}
	return nil
}

// fact reads a user and what he holds.
func (r *reply) holding() gate.Holding {
	f := gate.Holding{UserID: r.text()}
	held, coupon, _ := strings.Cut(r.text(), ":")
	n, errHeld := strconv.Atoi(held)
	c, errCoupon := strconv.ParseInt(coupon, 10, 64)
	if r.err == nil && (errHeld != nil || errCoupon != nil) {
		r.err = fmt.Errorf("what a holder has is %q:%q", held, coupon)
	}
	f.Held, f.CouponID = n, reward.CouponID(c)
	return f
}

// heldText is how a fact is stored.
func holdingText(f gate.Holding) string { return strconv.Itoa(f.Held) + ":" + f.CouponID.String() }

func number(n int64) string { return strconv.FormatInt(n, 10) }
