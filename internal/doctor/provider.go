package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// ProviderCheckParams configures CheckProvider.
type ProviderCheckParams struct {
	User        string        // who is paid
	RefuseUser  string        // a user that the provider refuses; "": refusals are not checked
	VoucherCode string        // of the voucher that is given
	Wait        time.Duration // before the last lookup of the first charge
}

const (
	checkBurst    = 16 // charges at the same time, with a key each
	checkTogether = 8  // charges at the same time, with one key
	checkAmount   = 1  // minor units
	checkPage     = 3  // charges per page of the list
	checkPagesMax = 1000
	// ProviderCheckCharges is the number of charges that CheckProvider makes if the provider
	// does what it should. Each is of one minor unit.
	ProviderCheckCharges = checkBurst + 6
)

// CheckProvider plays every call of the Money API against the provider of the
// settings, and returns what it found. It makes charges, on a promotion ID that no
// promotion has.
func CheckProvider(ctx context.Context, cfg config.Config, p ProviderCheckParams) ([]Check, error) {
	client, err := money.New(parts.MoneyConfig(cfg, obs.Log{}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	trial := &trial{
		ctx: ctx, cfg: cfg, with: p, client: client, promotion: checkPromotion(),
		paid: map[reward.TargetID]string{}, payable: cfg.Money.Payable(),
	}
	trial.run()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return trial.checks, nil
}

// checkPromotion returns the ID of no promotion. Its last digit is not 0, so that
// it can begin a target's ID.
func checkPromotion() reward.PromotionID {
	ids := service.NewIDs()
	for {
		if id := ids.Next(); id%10 != 0 {
			return reward.PromotionID(id)
		}
	}
}

type trial struct {
	ctx       context.Context
	cfg       config.Config
	with      ProviderCheckParams
	client    *money.Client
	payable   reward.Payable // says which promotions the settings let it pay
	promotion reward.PromotionID
	target    reward.TargetID // the latest one
	checks    []Check

	mu   sync.Mutex // protects the fields below
	paid map[reward.TargetID]string
	took []time.Duration
}

func (t *trial) add(c Check) { t.checks = append(t.checks, c) }

func (t *trial) next() money.Charge {
	t.target++
	return money.Charge{PromotionID: t.promotion, TargetID: t.target, UserID: t.with.User, Amount: checkAmount, Currency: t.payable.First()}
}

// charge makes a charge, and notes the transaction of a new one.
func (t *trial) charge(c money.Charge) money.Answer {
	began := time.Now()
	a := t.client.ChargePoint(t.ctx, c, nil)
	t.note(c, a, time.Since(began))
	return a
}

func (t *trial) note(c money.Charge, a money.Answer, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.Class != reward.AnswerPaid {
		return
	}
	t.took = append(t.took, took)
	if t.paid[c.TargetID] == "" {
		t.paid[c.TargetID] = a.TransactionKey
	}
}

// atOnce makes charges at the same time.
func (t *trial) atOnce(charges []money.Charge) []money.Answer {
	answers := make([]money.Answer, len(charges))
	var all sync.WaitGroup
	for i, c := range charges {
		all.Go(func() { answers[i] = t.charge(c) })
	}
	all.Wait()
	return answers
}

func (t *trial) lookup(c money.Charge) money.LookupResult {
	return t.client.Lookup(t.ctx, c.PromotionID, c.TargetID)
}

// run makes all checks. Without a first charge, only those follow that need none.
func (t *trial) run() {
	began := time.Now()
	first := t.next()
	a := t.charge(first)
	if a.Class == reward.AnswerPaid {
		t.add(passed("charge", "a charge of %d to user %s is answered with transactionKey %s", checkAmount, reward.Quote(t.with.User), a.TransactionKey))
		t.add(t.repeats(first, a.TransactionKey))
		t.add(t.together())
		t.add(t.otherBody(first, a.TransactionKey))
		if t.looksUp() {
			t.add(t.known(first, a.TransactionKey))
			t.add(t.lostReply())
		}
		t.add(t.burst())
		t.add(t.promotions(first, a.TransactionKey))
		if len(t.payable.Currencies) > 0 {
			t.add(t.currencies())
		}
		t.add(t.voucher())
	} else {
		t.add(passed("charge", "a charge to user %s is answered with %s", reward.Quote(t.with.User), described(a)).but(CheckFail, "%s", t.cure(a)))
		if a.Class == reward.AnswerNotSent {
			return
		}
	}
	if t.looksUp() {
		t.add(t.stranger())
	}
	t.add(t.refusals())
	if t.cfg.Money.Request.Path == "" {
		t.add(t.malformed())
	}
	t.add(t.credentials())
	if a.Class == reward.AnswerPaid {
		service.Sleep(t.ctx, t.with.Wait-time.Since(began))
		if t.looksUp() {
			t.add(t.later(first, a.TransactionKey))
		}
		if t.cfg.Money.Request.Path == "" {
			t.add(t.list())
		}
		t.add(t.latency())
	}
}

func (t *trial) looksUp() bool {
	return t.cfg.Money.Request.Path == "" || t.cfg.Money.Lookup.Path != ""
}

func described(a money.Answer) string {
	if a.Status == 0 {
		if a.Err == nil {
			return "no response"
		}
		return fmt.Sprintf("no response (%s)", OneLine(a.Err))
	}
	text := fmt.Sprintf("%d", a.Status)
	if a.TransactionKey != "" {
		return text + " and transactionKey " + a.TransactionKey
	}
	return text + " " + a.Code
}

func (t *trial) cure(a money.Answer) string {
	switch {
	case a.Class == reward.AnswerNotSent:
		return "check that it runs, and that the URL has the right scheme, host and port"
	case a.WithoutKey():
		return `answer a charge that was made with 200 and {"transactionKey": "…"}: without it, Largesse looks up every payout and pauses the promotion`
	case a.Class == reward.AnswerUnknown && a.Status == 0:
		return fmt.Sprintf("answer every charge within money.timeout, which is %s, or raise it", config.ShortDuration(t.cfg.Money.Timeout))
	case a.Class == reward.AnswerUnknown:
		return "answer a charge that was made with 200, also when it is repeated; this status leaves open whether it was made"
	case a.Status == http.StatusUnauthorized, a.Status == http.StatusForbidden:
		return "correct the credentials (money.token-file, money.auth-header, money.client-cert)"
	case a.Class == reward.AnswerMisconfigured:
		return "check the path of the URL; if this is a refusal, answer 422 with a JSON code, because without one it pauses the promotion"
	case a.Class == reward.AnswerRefused:
		return "name a user that may be paid, with --user"
	case a.Class == reward.AnswerThrottled:
		return "run this again when the provider accepts calls"
	}
	return "see the log of the provider: it fails"
}

// repeats charges a key again, the same way.
func (t *trial) repeats(c money.Charge, key string) Check {
	again := t.charge(c)
	switch {
	case again.Class != reward.AnswerPaid:
		return passed("repeat", "a repeated charge is answered with %s", described(again)).
			but(CheckFail, "answer the same charge again with 200 and the same transactionKey, as often as it comes")
	case again.TransactionKey != key:
		return passed("repeat", "a repeated charge is answered with transactionKey %s, the first one with %s", again.TransactionKey, key).
			but(CheckFail, "pay once per Idempotency-Key: look the key up before you pay, in the same transaction, and answer a known one with its transactionKey")
	default:
		return passed("repeat", "a repeated charge is answered with the same transactionKey")
	}
}

// otherBody charges a key again with another body.
func (t *trial) otherBody(c money.Charge, key string) Check {
	other := c
	other.Amount++
	switch a := t.client.ChargePoint(t.ctx, other, nil); {
	case a.Class == reward.AnswerPaid && a.TransactionKey != key:
		return passed("other-body", "the key with another amount is paid again, as %s", a.TransactionKey).
			but(CheckFail, "pay once per Idempotency-Key, whatever the body: refuse a known key with another body by 422 and a JSON code")
	case a.Class == reward.AnswerPaid:
		return passed("other-body", "the key with another amount is answered like the first charge").
			but(CheckWarn, "refuse a known key with another body by 422 and a JSON code, so that two systems with the same keys are found")
	case a.Class != reward.AnswerRefused:
		return passed("other-body", "the key with another amount is answered with %s", described(a)).
			but(CheckWarn, "refuse a known key with another body by 422 and a JSON code")
	default:
		return passed("other-body", "the key with another amount is refused with %s", described(a))
	}
}

// together charges a key several times at once.
func (t *trial) together() Check {
	c := t.next()
	answers := t.atOnce(slices.Repeat([]money.Charge{c}, checkTogether))
	var keys []string
	for _, a := range answers {
		if a.Class == reward.AnswerPaid && !slices.Contains(keys, a.TransactionKey) {
			keys = append(keys, a.TransactionKey)
		}
	}
	odd := slices.IndexFunc(answers, func(a money.Answer) bool {
		return a.Class != reward.AnswerPaid && a.Class != reward.AnswerThrottled && a.Status != http.StatusConflict
	})
	switch {
	case len(keys) > 1:
		return passed("concurrent", "%d charges at once with one key get %d transactionKeys", checkTogether, len(keys)).
			but(CheckFail, "make the check of the key and the payment one step: a unique key in one transaction, or a lock; two calls with one key can arrive at the same moment")
	case odd >= 0 && answers[odd].Class == reward.AnswerRefused:
		return passed("concurrent", "of %d charges at once with one key, one is answered with %s", checkTogether, described(answers[odd])).
			but(CheckFail, "let a charge wait while the same key is being paid, or answer 409 without a transactionKey: a refusal fails the payout")
	case odd >= 0 || len(keys) == 0:
		return passed("concurrent", "of %d charges at once with one key, one is answered with %s", checkTogether, described(answers[max(odd, 0)])).
			but(CheckWarn, "let a charge wait while the same key is being paid, then answer with its transactionKey")
	default:
		return passed("concurrent", "%d charges at once with one key get one transactionKey", checkTogether)
	}
}

func (t *trial) known(c money.Charge, key string) Check {
	return judgeKnown("lookup.known", t.lookup(c), key,
		"find every charge by its Idempotency-Key as soon as it is made: after \"not found\", Largesse tells people that nothing was paid")
}

func judgeKnown(name string, found money.LookupResult, key, advice string) Check {
	switch {
	case found.Found && found.TransactionKey == key:
		return passed(name, "the lookup of a charge finds its transactionKey")
	case found.Found:
		return passed(name, "the lookup of a charge answers %s, the charge %s", found.TransactionKey, key).
			but(CheckFail, "answer a lookup with the transactionKey of the charge")
	case found.NotFound:
		return passed(name, "the lookup of a charge answers %s", described(found.Answer)).but(CheckFail, "%s", advice)
	}
	return passed(name, "the lookup of a charge answers %s", described(found.Answer)).
		but(CheckFail, `answer GET /v1/transactions/{key} with 200 and {"transactionKey": "…"}, or payouts in UNKNOWN can never be settled`)
}

func (t *trial) later(c money.Charge, key string) Check {
	check := judgeKnown("lookup.later", t.lookup(c), key,
		"never forget a charge: lookups must find it forever, also after a restart")
	if a := t.charge(c); check.Status == CheckOK && (a.Class != reward.AnswerPaid || a.TransactionKey != key) {
		check = passed("lookup.later", "%s later, the repeated charge is answered with %s", config.ShortDuration(t.with.Wait), described(a)).
			but(CheckFail, "keep each Idempotency-Key for at least money.idempotency-window, which is %s", config.ShortDuration(t.cfg.Money.IdempotencyWindow))
	}
	return check
}

func (t *trial) stranger() Check {
	switch found := t.lookup(t.next()); {
	case found.NotFound:
		return passed("lookup.unknown", "the lookup of an unknown key answers %s", described(found.Answer))
	case found.Found:
		return passed("lookup.unknown", "the lookup of a key that was never charged answers %s", described(found.Answer)).
			but(CheckFail, "answer 404 with a JSON code for a key that was not charged: with 200, payouts count as paid that nobody paid")
	case found.Answer.Status == http.StatusNotFound:
		return passed("lookup.unknown", "the lookup of an unknown key answers 404 without a JSON code").
			but(CheckFail, `add a code to the 404, as {"code": "NOT_FOUND"}: without it, it could come from a proxy or a wrong path, and settles nothing`)
	default:
		return passed("lookup.unknown", "the lookup of an unknown key answers %s", described(found.Answer)).
			but(CheckFail, "answer 404 with a JSON code for a key that was not charged, or payouts in UNKNOWN can never be settled")
	}
}

// lostReply stops waiting for the response to a charge, looks the charge up, and
// makes it again, as Largesse does.
func (t *trial) lostReply() Check {
	c := t.next()
	ctx, cancel := context.WithCancelCause(t.ctx)
	defer cancel(nil)
	_ = t.client.ChargePoint(ctx, c, func() error {
		time.AfterFunc(max(t.typical()/2, time.Millisecond), func() { cancel(errNotWaiting) })
		return nil
	})
	before := t.lookup(c)
	again := t.charge(c)
	after := t.lookup(c)
	switch {
	case again.Class != reward.AnswerPaid:
		return passed("lost-reply", "a charge whose response nobody read is answered with %s when it is repeated", described(again)).
			but(CheckFail, "answer the same charge again with 200 and its transactionKey, also if the caller was gone the first time")
	case before.Found && before.TransactionKey != again.TransactionKey:
		return passed("lost-reply", "the lookup finds transactionKey %s, and the repeated charge answers %s", before.TransactionKey, again.TransactionKey).
			but(CheckFail, "pay once per Idempotency-Key, also if the caller was gone the first time")
	case !after.Found || after.TransactionKey != again.TransactionKey:
		return passed("lost-reply", "the lookup after the repeated charge answers %s, the charge %s", described(after.Answer), again.TransactionKey).
			but(CheckFail, "answer a lookup with the transactionKey of the charge")
	default:
		return passed("lost-reply", "a charge whose response nobody read is found, and answered with the same transactionKey when it is repeated")
	}
}

var errNotWaiting = errors.New("the check does not wait for this response")

func (t *trial) typical() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	sorted := slices.Sorted(slices.Values(t.took))
	return sorted[len(sorted)/2]
}

// burst makes charges at the same time, with a key each.
func (t *trial) burst() Check {
	charges := make([]money.Charge, checkBurst)
	for i := range charges {
		charges[i] = t.next()
	}
	answers := t.atOnce(charges)
	keys := map[string]bool{}
	for _, a := range answers {
		switch {
		case a.Class == reward.AnswerThrottled:
			return passed("burst", "%d charges at once are throttled with %s", checkBurst, described(a)).
				but(CheckWarn, "set money.rate-per-second or money.max-concurrency to what the provider accepts")
		case a.Class != reward.AnswerPaid:
			return passed("burst", "of %d charges at once, one is answered with %s", checkBurst, described(a)).but(CheckFail, "%s", t.cure(a))
		case keys[a.TransactionKey]:
			return passed("burst", "two charges with different keys got the same transactionKey %s", a.TransactionKey).
				but(CheckFail, "give every charge a transactionKey of its own: Largesse tells charges apart by it")
		}
		keys[a.TransactionKey] = true
	}
	return passed("burst", "%d charges at once are paid", checkBurst)
}

// promotions makes two charges under another promotion: with the target of the first
// charge, and with IDs that make the digits of its key when they are joined.
func (t *trial) promotions(first money.Charge, key string) Check {
	same, joined := first, first
	same.PromotionID /= 10
	joined.PromotionID = same.PromotionID
	digits := (first.PromotionID % 10).String() + first.TargetID.String()
	target, _ := strconv.ParseInt(digits, 10, 64) // a digit and a small number
	joined.TargetID = reward.TargetID(target)
	for _, c := range []money.Charge{same, joined} {
		a := t.client.ChargePoint(t.ctx, c, nil)
		said := passed("promotions", "promotion %d and target %d are answered with %s, promotion %d and target %d before with transactionKey %s",
			c.PromotionID, c.TargetID, described(a), first.PromotionID, first.TargetID, key)
		switch {
		case a.Class == reward.AnswerPaid && a.TransactionKey != key:
			continue
		case a.Class == reward.AnswerPaid, a.Class == reward.AnswerRefused:
			return said.but(CheckFail, "keep the whole Idempotency-Key and compare it as text: these are two payouts, of which one would never be paid")
		default:
			return said.but(CheckFail, "%s", t.cure(a))
		}
	}
	return passed("promotions", "charges with similar IDs are told apart")
}

// currencies charges in each currency of the settings but the first, in which all
// other charges are.
func (t *trial) currencies() Check {
	for _, code := range t.payable.Currencies[1:] {
		c := t.next()
		if c.Currency = code; code == reward.NoCurrency {
			c.Currency = ""
		}
		if a := t.charge(c); a.Class != reward.AnswerPaid {
			return passed("currencies", "a charge in %s is answered with %s", code, described(a)).
				but(CheckFail, "pay %s, or remove it from money.currencies", code)
		}
	}
	return passed("currencies", "charges in %s are paid", strings.Join(t.payable.Currencies, ", "))
}

func (t *trial) voucher() Check {
	c := t.next()
	if wrong := t.payable.Check(reward.Voucher, c.Currency); wrong != nil {
		return passed("voucher", "no voucher is given: the %s %s", wrong.Field, wrong.Detail)
	}
	c.VoucherCode = t.with.VoucherCode
	a := t.client.ChargeVoucher(t.ctx, c, nil)
	t.note(c, a, 0)
	switch a.Class {
	case reward.AnswerPaid:
		again := t.client.ChargeVoucher(t.ctx, c, nil)
		if again.Class != reward.AnswerPaid || again.TransactionKey != a.TransactionKey {
			return passed("voucher", "a repeated voucher is answered with %s, the first one with transactionKey %s", described(again), a.TransactionKey).
				but(CheckFail, "give a voucher once per Idempotency-Key, and answer the same again")
		}
		return passed("voucher", "a voucher is given, and the same when it is repeated")
	case reward.AnswerRefused:
		return passed("voucher", "the voucher %s is refused with %s", reward.Quote(c.VoucherCode), described(a)).
			but(CheckWarn, "name a voucher that may be given, with --voucher")
	default:
		return passed("voucher", "a voucher is answered with %s", described(a)).
			but(CheckWarn, "answer POST /v1/vouchers/charge like the charge of points, unless you have only promotions of type POINT")
	}
}

func (t *trial) refusals() Check {
	if t.with.RefuseUser == "" {
		return passed("refusal", "not checked").but(CheckWarn, "name a user that the provider refuses, with --refuse-user")
	}
	c := t.next()
	c.UserID = t.with.RefuseUser
	a := t.charge(c)
	found := t.lookup(c)
	said := passed("refusal", "user %s is answered with %s", reward.Quote(c.UserID), described(a))
	switch {
	case a.Class == reward.AnswerPaid:
		return said.but(CheckFail, "refuse this user, or name another one with --refuse-user")
	case a.Class == reward.AnswerFailed, a.Class == reward.AnswerThrottled:
		return said.but(CheckFail, "refuse with 422 and a JSON code: a 5xx is charged again, up to money.max-retries times, and never counts as refused")
	case a.Class == reward.AnswerMisconfigured:
		return said.but(CheckFail, `refuse with 422 and a JSON code, as {"code": "ACCOUNT_CLOSED"}: this pauses the whole promotion; or add the code to money.refusal-codes`)
	case a.Class != reward.AnswerRefused:
		return said.but(CheckFail, "refuse with 422 and a JSON code: this leaves open whether anything was paid")
	case found.Found:
		return passed("refusal", "the lookup of a refused charge answers %s", described(found.Answer)).
			but(CheckFail, "answer 404 with a JSON code for a key that was refused: with 200, the payout counts as paid")
	default:
		return said
	}
}

func (t *trial) malformed() Check {
	c := t.next()
	key := reward.IdempotencyKey(c.PromotionID, c.TargetID)
	body := func(amount string) []byte {
		return fmt.Appendf(nil, `{"promotionId":"%v","targetId":"%v","userId":"somebody","amount":%s}`, c.PromotionID, c.TargetID, amount)
	}
	for _, try := range []struct {
		what, key string
		body      []byte
	}{
		{"a charge without an Idempotency-Key", "", body("1")},
		{"a charge that is not JSON", key, []byte(`{"promotionId":`)},
		{"a charge of a negative amount", key, body("-1")},
		{"a charge without an amount", key, body("null")},
	} {
		a := t.client.Probe(t.ctx, "/v1/points/charge", try.key, try.body)
		switch {
		case a.Class == reward.AnswerPaid:
			return passed("malformed", "%s is paid", try.what).but(CheckFail, "refuse it with 400 and a JSON code: it is somebody's mistake")
		case a.Class != reward.AnswerRefused && a.Class != reward.AnswerMisconfigured:
			return passed("malformed", "%s is answered with %s", try.what, described(a)).
				but(CheckWarn, "refuse it with 400 and a JSON code: after this response, the same charge comes again")
		}
	}
	return passed("malformed", "malformed charges are refused")
}

func (t *trial) credentials() Check {
	own := t.cfg.Money.Credentials()
	if own == (money.Credentials{CAFile: own.CAFile}) {
		return passed("credentials", "none are set, and none are needed").
			but(CheckWarn, "let the provider ask for some, and set money.token-file, money.auth-header or money.client-cert: now everybody who can reach it can pay")
	}
	with := parts.MoneyConfig(t.cfg, obs.Log{})
	for _, try := range []struct {
		what  string
		creds money.Credentials
	}{
		{"without credentials", money.Credentials{CAFile: own.CAFile}},
		{"with wrong credentials", money.Credentials{CAFile: own.CAFile, Header: "Authorization: Bearer largesse-provider-check"}},
	} {
		with.Credentials = try.creds
		client, err := money.New(with)
		if err != nil {
			return passed("credentials", "%s", OneLine(err)).but(CheckFail, "correct that setting")
		}
		c := t.next()
		a := client.ChargePoint(t.ctx, c, nil)
		client.Close()
		t.note(c, a, 0)
		switch a.Class {
		case reward.AnswerPaid:
			return passed("credentials", "a charge %s is paid", try.what).but(CheckFail, "check the credentials of each call, and answer 401 or 403")
		case reward.AnswerMisconfigured, reward.AnswerNotSent:
		default:
			return passed("credentials", "a charge %s is answered with %s", try.what, described(a)).
				but(CheckFail, "answer 401 or 403, which pauses the promotion: after this response, payouts fail or are repeated when a credential expires")
		}
	}
	return passed("credentials", "charges without credentials and with wrong ones are not accepted")
}

// list compares the provider's list, read in small pages, with the charges.
func (t *trial) list() Check {
	seen := map[reward.TargetID]money.ListedCharge{}
	order := []reward.TargetID{}
	pages, cursor := 0, ""
	for {
		page, err := t.client.ChargesUpTo(t.ctx, t.promotion, cursor, checkPage)
		switch {
		case errors.Is(err, money.ErrNoCharges):
			return passed("list", "the provider does not list its charges").
				but(CheckWarn, "answer GET /v1/charges, so that Largesse compares both books while it pays")
		case err != nil:
			return passed("list", "%s", OneLine(err)).but(CheckFail, "answer GET /v1/charges as docs/provider.md says, or with 404 if you have no list")
		}
		for _, c := range page.Charges {
			before, twice := seen[c.TargetID]
			switch {
			case twice && before.TransactionKey != c.TransactionKey:
				return passed("list", "the key %s is listed as %s and as %s", reward.IdempotencyKey(c.PromotionID, c.TargetID), before.TransactionKey, c.TransactionKey).
					but(CheckFail, "pay once per Idempotency-Key: this key was charged twice")
			case twice:
				return passed("list", "the key %s is on two pages", reward.IdempotencyKey(c.PromotionID, c.TargetID)).
					but(CheckFail, "begin each page after the last charge of the page before: Largesse takes a key that is listed twice for a second charge")
			}
			seen[c.TargetID] = c
			order = append(order, c.TargetID)
		}
		pages++
		if cursor = page.NextCursor; cursor == "" || pages == checkPagesMax {
			break
		}
	}
	return t.judgeList(seen, order, pages)
}

func (t *trial) judgeList(seen map[reward.TargetID]money.ListedCharge, order []reward.TargetID, pages int) Check {
	for target, key := range t.paid {
		c, listed := seen[target]
		switch {
		case !listed:
			return passed("list", "the charge %s is not listed", reward.IdempotencyKey(t.promotion, target)).
				but(CheckFail, "list every charge within 10 s, and begin each page where the one before ended: Largesse takes a missing one for a payout that was not paid")
		case c.TransactionKey != "" && c.TransactionKey != key:
			return passed("list", "the list has transactionKey %s for a charge that was answered with %s", c.TransactionKey, key).
				but(CheckFail, "list each charge with its transactionKey")
		case c.Amount != checkAmount:
			return passed("list", "the list has the amount %d for a charge of %d", c.Amount, checkAmount).but(CheckFail, "list amounts in minor units")
		}
	}
	for _, target := range order {
		if t.paid[target] == "" {
			return passed("list", "the list has the key %s, which was not paid", reward.IdempotencyKey(t.promotion, target)).
				but(CheckFail, "list only charges that were made, not refused ones: Largesse takes it for a second charge")
		}
	}
	whole, err := t.client.Charges(t.ctx, t.promotion, "")
	again := make([]reward.TargetID, 0, len(order))
	for _, c := range whole.Charges {
		again = append(again, c.TargetID)
	}
	if err != nil || len(again) > len(order) || !slices.Equal(again, order[:len(again)]) {
		return passed("list", "the list has another order when it is read again").
			but(CheckFail, "list charges in the order in which they were made, always: a reader that continues at a cursor misses some otherwise")
	}
	return passed("list", "%d charges on %d pages, each once and in order", len(order), pages)
}

func (t *trial) latency() Check {
	slowest, timeout := slices.Max(t.took), t.cfg.Money.Timeout
	c := passed("latency", "charges take %s, the slowest of %d %s", rounded(t.typical()), len(t.took), rounded(slowest))
	if slowest > timeout/2 {
		c = c.but(CheckWarn, "answer faster, or raise money.timeout, which is %s: a charge that takes longer is looked up", config.ShortDuration(timeout))
	}
	return c
}
