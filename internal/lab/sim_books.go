package lab

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/client"
)

// SimReport is the result of a simulation.
type SimReport struct {
	Took       time.Duration
	Acts       map[string]ActCount // actions by name
	Promotions []PromotionBooks
	Templates  []TemplateBooks
	Verdicts   []Verdict

	open []string // what was still open at the end
}

// Holds reports whether every invariant holds.
func (s *SimReport) Holds() bool {
	return !slices.ContainsFunc(s.Verdicts, func(v Verdict) bool { return !v.Holds })
}

// PromotionBooks holds the books of one promotion on both sides.
type PromotionBooks struct {
	ID      string        `json:"id"`
	Type    string        `json:"type"`
	Status  string        `json:"status"`
	Targets int64         `json:"targets"`
	Counts  client.Counts `json:"counts"`
	Paid    int64         `json:"amountPaid"`    // by the database rows
	Charges int64         `json:"charges"`       // by the provider's ledger
	Charged int64         `json:"amountCharged"` // by the provider's ledger
}

// TemplateBooks holds the books of one coupon template.
type TemplateBooks struct {
	ID        string `json:"id"`
	Mode      string `json:"mode"`
	Quantity  int64  `json:"quantity"`
	Live      int64  `json:"live"`
	Issued    int64  `json:"issued"` // ever issued
	Cancelled int64  `json:"cancelled"`
	Outcomes  int64  `json:"outcomes"` // requests with an outcome, issued or not
}

// finding collects the breaches of one invariant.
type finding struct {
	invariant string
	checked   int64 // number of checks
	broken    int64
	first     string
}

func (f *finding) hold(holds bool, format string, args ...any) {
	f.checked++
	if holds {
		return
	}
	f.broken++
	if f.first == "" {
		f.first = fmt.Sprintf(format, args...)
	}
}

func (f *finding) verdict() Verdict {
	v := Verdict{Invariant: f.invariant, Holds: f.broken == 0, Detail: fmt.Sprintf("%d checked", f.checked)}
	if !v.Holds {
		v.Detail = fmt.Sprintf("%d of %d broken, first: %s", f.broken, f.checked, f.first)
	}
	return v
}

// reconcileTriesMax limits the reconciliations of one promotion or template.
const reconcileTriesMax = 20

// simBooks holds a finding per invariant.
type simBooks struct {
	once, unpaid, lostMoney, counts, strangers, accepted, rested, budgets finding
	live, limits, counters, tickets, promised, final, waiting             finding
	dead, reconciled, answered, always                                    finding

	all []*finding
}

func newSimBooks() *simBooks {
	b := &simBooks{}
	for _, one := range []struct {
		finding   *finding
		invariant string
	}{
		{&b.once, "no target is charged more than once"},
		{&b.unpaid, "nothing was charged that failed, was cancelled or belongs to a draft"},
		{&b.lostMoney, "every succeeded payout was charged the right amount, with the same transaction key"},
		{&b.counts, "the counts and sums of every promotion match its rows"},
		{&b.strangers, "nothing else was charged"},
		{&b.accepted, "every accepted target has a row with an amount that was sent"},
		{&b.rested, "nothing is open any more"},
		{&b.budgets, "no budget is exceeded"},
		{&b.live, "no template has more live coupons than its quantity"},
		{&b.limits, "no user has more coupons than the limit"},
		{&b.counters, "the counters of every template match its rows"},
		{&b.tickets, "tickets start at 1, have no gap and no duplicate (mode STREAM)"},
		{&b.promised, "every coupon that a response contained exists unchanged"},
		{&b.final, "every used or cancelled coupon stays so"},
		{&b.waiting, "no request waits any more"},
		{&b.dead, "all malformed records are dead letters, and no others"},
		{&b.reconciled, "reconciliations find no difference"},
		{&b.answered, "every call got a documented response while the engine was up"},
		{&b.always, "what must hold at any moment held at every check"},
	} {
		one.finding.invariant = one.invariant
		b.all = append(b.all, one.finding)
	}
	return b
}

func (b *simBooks) verdicts() []Verdict {
	var out []Verdict
	for _, f := range b.all {
		out = append(out, f.verdict())
	}
	return out
}

// books reads the books of both sides and checks the invariants.
func (r *running) books(ctx context.Context, report *SimReport) error {
	r.trace("reading the books")
	if err := r.check(ctx); err != nil {
		return err
	}
	ledger, err := ReadLedger(ctx, r.money)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := newSimBooks()
	api := r.up.Load().api
	seen := make(map[int64]bool)
	for p, err := range api.Promotions(ctx, "") {
		if err != nil {
			return err
		}
		id, err := strconv.ParseInt(p.ID, 10, 64)
		if err != nil {
			return err
		}
		seen[id] = true
		var rows []client.Payout
		for row, err := range api.Payouts(ctx, p.ID, client.PayoutFilter{}) {
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		report.Promotions = append(report.Promotions, b.promotion(p, rows, r.note.promotions[id], ledger[p.ID]))
		if err := b.reconcile("promotion "+p.ID, func() (client.Reconciliation, error) { return api.Reconcile(ctx, p.ID, false) }); err != nil {
			return err
		}
	}
	for id, sent := range r.note.promotions {
		b.accepted.hold(seen[id] || !sent.created, "promotion %d does not exist", id)
	}
	for id := range ledger {
		n, err := strconv.ParseInt(id, 10, 64)
		b.strangers.hold(err == nil && seen[n], "charges for promotion %s, which does not exist", id)
	}
	if err := r.couponBooks(ctx, b, report); err != nil {
		return err
	}
	dead := 0
	for d, err := range api.DeadLetters(ctx, client.DeadLetterFilter{Reason: "MALFORMED"}) {
		if err != nil {
			return err
		}
		if strings.Contains(d.Source, "publish") {
			dead++
		}
	}
	b.dead.hold(dead >= r.note.malformed && dead <= r.note.malformedTried, "%d dead letters, %d malformed records accepted of %d sent", dead, r.note.malformed, r.note.malformedTried)
	b.rested.hold(len(report.open) == 0, "%s", strings.Join(report.open, "; "))
	for _, text := range r.note.unanswered {
		b.answered.hold(false, "%s", text)
	}
	for _, n := range r.acts {
		b.answered.checked += int64(n.Done + n.Refused)
	}
	for _, text := range r.note.breaches {
		b.always.hold(false, "%s", text)
	}
	b.always.checked += int64(1)
	if n := r.acts[actCheck]; n != nil {
		b.always.checked += int64(n.Done)
	}
	slices.SortFunc(report.Promotions, func(a, b PromotionBooks) int { return byNumber(a.ID, b.ID) })
	slices.SortFunc(report.Templates, func(a, b TemplateBooks) int { return byNumber(a.ID, b.ID) })
	report.Acts = make(map[string]ActCount)
	for act, n := range r.acts {
		report.Acts[act] = *n
	}
	report.Verdicts = b.verdicts()
	return nil
}

// byNumber compares two numbers in decimal.
func byNumber(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// reconcile notes the first reconciliation that skips nothing, or the last one: the short
// money.timeout of the run can be over before a busy machine has listed the charges.
func (b *simBooks) reconcile(what string, run func() (client.Reconciliation, error)) error {
	for try := 1; ; try++ {
		r, err := run()
		if err != nil {
			return err
		}
		if len(r.Skipped) == 0 || try == reconcileTriesMax {
			b.reconciliation(what, r)
			return nil
		}
	}
}

func (b *simBooks) reconciliation(what string, r client.Reconciliation) {
	b.reconciled.hold(len(r.Drifts) == 0 && len(r.Skipped) == 0, "%s: %+v %v", what, r.Drifts, r.Skipped)
}

// promotion compares the rows of a promotion with its counts, with what was
// sent and with the charges. sent is nil if nothing was sent.
func (b *simBooks) promotion(p client.Promotion, rows []client.Payout, sent *sentPromotion, charges map[string]Entry) PromotionBooks {
	if sent == nil {
		sent = &sentPromotion{}
	}
	var counted client.Counts
	out := PromotionBooks{ID: p.ID, Type: p.Type, Status: p.Status, Targets: p.TotalCount, Counts: p.Counts}
	var amount int64
	places := map[string]*int64{
		"READY": &counted.Ready, "QUEUED": &counted.Queued, "RETRYING": &counted.Retrying, "UNKNOWN": &counted.Unknown,
		"SUCCEEDED": &counted.Succeeded, "FAILED": &counted.Failed, "CANCELLED": &counted.Cancelled,
	}
	rowOf := make(map[string]bool, len(rows))
	for _, row := range rows {
		who := "promotion " + p.ID + ", target " + row.TargetID
		b.counts.hold(!rowOf[row.TargetID], "%s has two rows", who)
		rowOf[row.TargetID] = true
		amount += row.Amount
		if place := places[row.State]; place != nil {
			*place++
		}
		e, charged := charges[row.TargetID]
		out.Charges += int64(e.Charges)
		out.Charged += e.Amount
		b.once.hold(e.Charges <= 1, "%s was charged %d times", who, e.Charges)
		final := false
		switch row.State {
		case "SUCCEEDED":
			final = true
			out.Paid += row.Amount
			b.lostMoney.hold(charged && e.Amount == row.Amount && e.TransactionKey == row.TransactionKey,
				"%s succeeded with %d under key %q, but the provider has %+v", who, row.Amount, row.TransactionKey, e)
		case "FAILED", "CANCELLED":
			final = true
			b.unpaid.hold(!charged, "%s is %s, but was charged %d", who, row.State, e.Amount)
		}
		if p.Status == "DRAFT" {
			b.unpaid.hold(!charged, "%s belongs to a draft, but was charged %d", who, e.Amount)
		} else {
			b.rested.hold(final, "%s is still %s in a %s promotion", who, row.State, p.Status)
		}
		target, err := strconv.Atoi(row.TargetID)
		b.accepted.hold(err == nil && slices.Contains(sent.amounts[target], row.Amount), "%s has the amount %d, which was never sent", who, row.Amount)
	}
	for _, target := range slices.Sorted(maps.Keys(sent.known)) {
		b.accepted.hold(rowOf[strconv.Itoa(target)], "promotion %s, target %d was accepted, but has no row", p.ID, target)
	}
	for target := range charges {
		b.strangers.hold(rowOf[target], "promotion %s, target %s was charged, but has no row", p.ID, target)
	}
	b.counts.hold(counted == p.Counts && p.TotalCount == int64(len(rows)), "promotion %s counts %d: %+v, but has %d rows: %+v", p.ID, p.TotalCount, p.Counts, len(rows), counted)
	b.counts.hold(amount == p.AmountTotal && out.Paid == p.AmountSucceeded, "promotion %s has a total of %d and %d paid, but its rows %d and %d", p.ID, p.AmountTotal, p.AmountSucceeded, amount, out.Paid)
	b.rested.hold(p.Status == "DRAFT" || p.Status == "COMPLETED" || p.Status == "CANCELLED", "promotion %s is %s", p.ID, p.Status)
	if sent.maxAmount > 0 {
		b.budgets.hold(out.Charged <= sent.maxAmount, "promotion %s was charged %d of %d", p.ID, out.Charged, sent.maxAmount)
	}
	return out
}

// couponBooks compares the coupons of all templates with the responses that
// users got. The caller holds mu.
func (r *running) couponBooks(ctx context.Context, b *simBooks, report *SimReport) error {
	api := r.up.Load().api
	outcomes, err := r.outcomes(ctx, api)
	if err != nil {
		return err
	}
	for t, err := range api.Templates(ctx) {
		if err != nil {
			return err
		}
		id, err := strconv.ParseInt(t.ID, 10, 64)
		if err != nil {
			return err
		}
		var coupons []client.Coupon
		for c, err := range api.TemplateCoupons(ctx, t.ID) {
			if err != nil {
				return err
			}
			coupons = append(coupons, c)
		}
		report.Templates = append(report.Templates, b.template(t, coupons, r.note.templates[id], outcomes[t.ID]))
		if err := b.reconcile("template "+t.ID, func() (client.Reconciliation, error) { return api.ReconcileTemplate(ctx, t.ID, false) }); err != nil {
			return err
		}
	}
	for id, sent := range r.note.templates {
		found := slices.ContainsFunc(report.Templates, func(t TemplateBooks) bool { return t.ID == strconv.FormatInt(id, 10) })
		b.promised.hold(found || !sent.created, "template %d does not exist", id)
	}
	return nil
}

// outcomes returns the outcomes of all users' requests by template. The caller
// holds mu.
func (r *running) outcomes(ctx context.Context, api *client.Client) (map[string][]client.HistoryItem, error) {
	users := make(map[string]bool)
	for _, t := range r.note.templates {
		maps.Copy(users, t.users)
	}
	out := make(map[string][]client.HistoryItem)
	for _, user := range slices.Sorted(maps.Keys(users)) {
		h, err := api.UserHistory(ctx, user)
		if err != nil {
			return nil, err
		}
		for _, item := range h.Items {
			out[item.TemplateID] = append(out[item.TemplateID], item)
		}
	}
	return out, nil
}

// template compares the coupons of a template with its counters, the responses
// that users got and the outcomes of their requests. sent is nil without
// requests.
func (b *simBooks) template(t client.Template, coupons []client.Coupon, sent *sentTemplate, outcomes []client.HistoryItem) TemplateBooks {
	if sent == nil {
		sent = &sentTemplate{}
	}
	out := TemplateBooks{ID: t.ID, Mode: t.Mode, Quantity: t.TotalQuantity, Issued: int64(len(coupons)), Outcomes: int64(len(outcomes))}
	byID := make(map[string]client.Coupon, len(coupons))
	held := make(map[string]int)
	for _, c := range coupons {
		byID[c.ID] = c
		if c.Status == "CANCELLED" {
			out.Cancelled++
			if t.ReissueAfterCancel {
				continue // it counts neither for the template nor for the user
			}
		}
		held[c.UserID]++
	}
	out.Live = out.Issued - out.Cancelled
	who := "template " + t.ID
	b.live.hold(out.Live <= t.TotalQuantity, "%s: %d live coupons of %d", who, out.Live, t.TotalQuantity)
	for user, n := range held {
		b.limits.hold(n <= t.PerUserLimit, "%s: user %s has %d coupons of %d", who, user, n, t.PerUserLimit)
	}
	n := t.Counters
	b.counters.hold(n.Count == out.Live && n.IssuedTotal == out.Issued && n.Stock == t.TotalQuantity-out.Live-n.Waiting && n.TotalQuantity == t.TotalQuantity,
		"%s counts %+v, but its rows are %d live of %d", who, n, out.Live, out.Issued)
	b.waiting.hold(n.Waiting == 0, "%s: %d requests wait", who, n.Waiting)
	for _, id := range slices.Sorted(maps.Keys(sent.promised)) {
		told, there := sent.promised[id], byID[id]
		b.promised.hold(there.ID == id && there.UserID == told.UserID && (there.Code == told.Code || told.Status == "HELD") && there.Ticket == told.Ticket,
			"%s: user %s was shown coupon %s, ticket %d, but the row is %+v", who, told.UserID, id, told.Ticket, there)
	}
	for _, id := range slices.Sorted(maps.Keys(sent.final)) {
		b.final.hold(byID[id].Status == sent.final[id], "%s: coupon %s was %s and is now %s", who, id, sent.final[id], byID[id].Status)
	}
	b.ticketsOf(t, coupons, outcomes)
	return out
}

// ticketsOf checks the tickets of a template in mode STREAM: those of issued
// and refused requests together are 1…N, and coupons were issued in their
// order.
func (b *simBooks) ticketsOf(t client.Template, coupons []client.Coupon, outcomes []client.HistoryItem) {
	if t.Mode != "STREAM" {
		return
	}
	who := "template " + t.ID
	tickets := make([]int64, 0, len(outcomes))
	issued := 0
	for _, o := range outcomes {
		tickets = append(tickets, o.Ticket)
		if o.Coupon != nil {
			issued++
		}
	}
	b.tickets.hold(issued == len(coupons), "%s has %d coupons, but %d requests with a coupon", who, len(coupons), issued)
	slices.Sort(tickets)
	for i, ticket := range tickets {
		b.tickets.hold(ticket == int64(i+1), "%s: found ticket %d instead of %d", who, ticket, i+1)
	}
	var last client.Coupon
	for _, c := range coupons {
		b.tickets.hold(c.Ticket > last.Ticket && !c.IssuedAt.Before(last.IssuedAt), "%s: ticket %d was issued before ticket %d", who, c.Ticket, last.Ticket)
		last = c
	}
}
