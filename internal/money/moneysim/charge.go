package moneysim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"mime"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

// refusals lists the reasons for refusing a key.
var refusals = [...]problem{
	{"REFUSED_ACCOUNT_CLOSED", "the user's account is closed"},
	{"REFUSED_LIMIT_REACHED", "the user may not hold more"},
	{"REFUSED_NOT_ELIGIBLE", "the user may not have this"},
}

// chargeRequest is the body of a charge. Pointers distinguish missing from
// zero.
type chargeRequest struct {
	PromotionID *id     `json:"promotionId"`
	TargetID    *id     `json:"targetId"`
	UserID      *string `json:"userId"`
	Amount      *int64  `json:"amount"`
	Currency    string  `json:"currency"`
	VoucherCode *string `json:"voucherCode"`
}

var currencyText = regexp.MustCompile(`^[A-Z]{3}$`)

// id is an ID on the wire: a string or a number.
type id int64

// UnmarshalJSON accepts the canonical decimal form, with or without quotes.
func (n *id) UnmarshalJSON(raw []byte) error {
	text := string(bytes.Trim(raw, `"`))
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < 0 || strconv.FormatInt(v, 10) != text {
		return fmt.Errorf("an ID must be an integer of at least 0 without leading zeros, as a string or a number")
	}
	*n = id(v)
	return nil
}

// check returns an error if a well-formed request has an invalid value.
func (c *chargeRequest) check(voucher bool) error {
	switch {
	case c.PromotionID == nil:
		return errors.New("promotionId is missing")
	case *c.PromotionID == 0:
		return errors.New("promotionId must be above 0")
	case c.TargetID == nil:
		return errors.New("targetId is missing")
	case c.UserID == nil:
		return errors.New("userId is missing")
	case c.Amount == nil:
		return errors.New("amount is missing")
	case *c.Amount < 0:
		return errors.New("amount must not be below 0")
	case c.Currency != "" && !currencyText.MatchString(c.Currency):
		return errors.New("currency must be three capital letters")
	case !voucher && *c.Amount == 0:
		return errors.New("amount of points must be above 0")
	case !voucher && c.VoucherCode != nil:
		return errors.New("voucherCode is not allowed for points")
	case voucher && (c.VoucherCode == nil || *c.VoucherCode == ""):
		return errors.New("voucherCode is missing")
	}
	return nil
}

// fingerprint returns a hash of the body's values, independent of their
// formatting.
func (s *Server) fingerprint(c *chargeRequest, voucher bool) uint64 {
	var h maphash.Hash
	h.SetSeed(s.hash)
	code := ""
	if voucher {
		code = *c.VoucherCode
	}
	_, _ = fmt.Fprintf(&h, "%t %d %q %q %q", voucher, *c.Amount, c.Currency, *c.UserID, code) // a hash never fails
	return h.Sum64()
}

// charge serves charges of points and vouchers.
func (s *Server) charge(w http.ResponseWriter, r *http.Request, voucher bool) {
	books, weather := s.books.Load(), s.weather.Load()
	books.requests.Add(1)
	books.arrivals.note(time.Since(s.began))
	if s.outOfReach(w, weather) {
		return
	}
	if weather.limit != nil && !weather.limit.Allow() {
		w.Header().Set("Retry-After", retryAfter)
		refuse(w, http.StatusTooManyRequests, "RATE_LIMITED", "more requests than ratePerSecond")
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, "NOT_JSON", "Content-Type must be application/json")
		return
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyMax))
	if err != nil {
		refuse(w, http.StatusBadRequest, "MALFORMED", "the body cannot be read")
		return
	}
	var req chargeRequest
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		refuse(w, http.StatusBadRequest, "MALFORMED", err.Error())
		return
	}
	if d.InputOffset() != int64(len(bytes.TrimRight(raw, " \t\r\n"))) {
		refuse(w, http.StatusBadRequest, "MALFORMED", "the body holds more than one JSON value")
		return
	}
	if err := req.check(voucher); err != nil {
		refuse(w, http.StatusUnprocessableEntity, "INVALID", err.Error())
		return
	}
	k := key{promotion: int64(*req.PromotionID), target: int64(*req.TargetID)}
	if r.Header.Get("Idempotency-Key") != k.String() {
		refuse(w, http.StatusUnprocessableEntity, "KEY_MISMATCH", "Idempotency-Key must be "+k.String())
		return
	}
	try, charged, ok := books.receive(k, s.fingerprint(&req, voucher))
	if !ok {
		refuse(w, http.StatusUnprocessableEntity, "KEY_REUSED", "the key came with another body before")
		return
	}
	s.settle(w, r, weather, books, attempt{
		charge: charge{key: k, amount: *req.Amount, currency: req.Currency, voucher: voucher}, try: try, charged: charged,
	})
}

// attempt is one valid request of a key.
type attempt struct {
	charge
	try     uint32
	charged bool // before this request
}

// settle applies the faults, charges and responds.
func (s *Server) settle(w http.ResponseWriter, r *http.Request, weather *weather, books *books, a attempt) {
	hit := func(d draw, share float64) bool { return chance(s.cfg.Seed, a.key, a.try, d) < share }
	pay := func() string { return books.charge(a.charge, a.charged) }
	if hit(drawDuplicate, weather.DuplicateRate) {
		books.repeat(a.charged)
		pay = func() string { return books.chargeTwice(a.charge, a.charged) }
	}
	switch {
	case hit(drawResetBefore, weather.ResetBeforeRate):
		reset(w)
		return
	case hit(drawThrottle, weather.ThrottleRate):
		w.Header().Set("Retry-After", retryAfter)
		refuse(w, http.StatusTooManyRequests, "THROTTLED", "a simulated fault; nothing was charged by this request")
		return
	}
	// Do not stop when the caller has gone: a real provider continues, and
	// charges after its caller's timeout.
	if !s.pause(weather.latency(s.cfg.Seed, a.key, a.try)) {
		panic(http.ErrAbortHandler)
	}
	switch {
	case !a.charged && chance(s.cfg.Seed, a.key, 0, drawRefuse) < weather.RefuseRate:
		reason := refusals[int(chance(s.cfg.Seed, a.key, 0, drawRefuseReason)*float64(len(refusals)))]
		refuse(w, http.StatusUnprocessableEntity, reason.Code, reason.Message)
	case hit(drawError, weather.ErrorRate):
		refuse(w, http.StatusInternalServerError, "INTERNAL_ERROR", "a simulated fault; nothing was charged by this request")
	case hit(drawUnavailable, weather.UnavailableRate):
		if hit(drawUnavailableCharged, 0.5) {
			pay()
		}
		refuse(w, http.StatusServiceUnavailable, "UNAVAILABLE", "a simulated fault; this request may have been charged")
	case hit(drawTimeout, weather.TimeoutRate):
		if hit(drawTimeoutCharged, 0.5) {
			pay()
		}
		select {
		case <-r.Context().Done():
		case <-s.stopped:
		}
		panic(http.ErrAbortHandler)
	case hit(drawLostReply, weather.LostReplyRate):
		pay()
		panic(http.ErrAbortHandler)
	case hit(drawResetAfter, weather.ResetAfterRate):
		pay()
		reset(w)
	case hit(drawSlowDrip, weather.SlowDripRate):
		s.drip(w, r, pay())
	default:
		writeJSON(w, http.StatusOK, transaction{TransactionKey: pay()})
	}
}

// outOfReach handles a call that does not reach the provider's application, and
// reports whether it did.
func (s *Server) outOfReach(w http.ResponseWriter, weather *weather) bool {
	switch status := weather.MisconfiguredStatus; {
	case weather.Away:
		reset(w)
	case status == 0:
		return false
	case status == http.StatusNotFound:
		// Send no code, like a server that does not know the path: a 404 with a
		// code would answer a lookup.
		http.Error(w, "404 page not found", status)
	default:
		refuse(w, status, "MISCONFIGURED", "a simulated fault of the caller's settings; nothing was charged by this request")
	}
	return true
}

// reset resets the connection, so that the caller sees it at once. If the
// connection is not available, it aborts the response.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it, the close is orderly
	}
	_ = conn.Close()
}

// drip writes a success response byte by byte: its beginning, and then white
// space until the caller has gone.
func (s *Server) drip(w http.ResponseWriter, r *http.Request, transactionKey string) {
	begin := fmt.Sprintf(`{"transactionKey":%q`, transactionKey)
	w.Header().Set("Content-Type", "application/json")
	out := http.NewResponseController(w)
	tick := time.NewTicker(dripEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		next := " "
		if i < len(begin) {
			next = begin[i : i+1]
		}
		if _, err := io.WriteString(w, next); err != nil || out.Flush() != nil {
			panic(http.ErrAbortHandler)
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		case <-s.stopped:
			panic(http.ErrAbortHandler)
		}
	}
}

// transaction is the body of a success response.
type transaction struct {
	TransactionKey string `json:"transactionKey"`
}

func (s *Server) lookup(w http.ResponseWriter, r *http.Request) {
	weather := s.weather.Load()
	if s.outOfReach(w, weather) {
		return
	}
	k, ok := parseKey(r.PathValue("key"))
	if !ok {
		refuse(w, http.StatusBadRequest, "MALFORMED", "the key must be promotionId:targetId")
		return
	}
	if !s.pause(weather.latency(s.cfg.Seed, k, 0)) {
		panic(http.ErrAbortHandler)
	}
	tx, ok := s.books.Load().transaction(k)
	if !ok {
		refuse(w, http.StatusNotFound, "TRANSACTION_NOT_FOUND", "nothing was charged under this key")
		return
	}
	writeJSON(w, http.StatusOK, transaction{TransactionKey: tx})
}

// pause waits for d. It reports false if the simulator is closed in the
// meantime.
func (s *Server) pause(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.stopped:
		return false
	}
}
