package redisgate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// reply reads the elements of a reply from front to back. It keeps the first
// deviation from what the script promises as its error; all reads after it return
// zero values.
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

// number reads a number, which may be text.
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

// done returns the error of the reply of a script. Remaining elements are an error.
func (r *reply) done(s *script, id reward.TemplateID) error {
	if r.err == nil && len(r.rows) > 0 {
		r.err = fmt.Errorf("the reply has %d elements too many", len(r.rows))
	}
	if r.err != nil {
		return fmt.Errorf("redisgate: %s %s: %w", s.name, id, r.err)
	}
	return nil
}

// holding reads a user and their holding.
func (r *reply) holding() gate.Holding { return r.holdingOf(r.text()) }

// holdingOf reads the holding of a user; nil is none.
func (r *reply) holdingOf(user string) gate.Holding {
	h := gate.Holding{UserID: user}
	if r.err == nil && len(r.rows) > 0 && r.rows[0].IsNil() {
		r.rows = r.rows[1:]
		return h
	}
	stored := r.text()
	held, coupon, _ := strings.Cut(stored, ":")
	n, errHeld := strconv.Atoi(held)
	c, errCoupon := strconv.ParseInt(coupon, 10, 64)
	if r.err == nil && (errHeld != nil || errCoupon != nil) {
		r.err = fmt.Errorf("the holding of a user is %q:%q", held, coupon)
	}
	h.Held, h.CouponID = n, reward.CouponID(c)
	return h
}

// holdingText formats a holding as it is stored.
func holdingText(h gate.Holding) string { return strconv.Itoa(h.Held) + ":" + h.CouponID.String() }

func number(n int64) string { return strconv.FormatInt(n, 10) }
