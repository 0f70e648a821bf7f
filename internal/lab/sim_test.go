package lab

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestPlan: a plan follows from its seed alone.
func TestPlan(t *testing.T) {
	t.Parallel()
	fixture.Equal(t, NewPlan(7, 300), NewPlan(7, 300))
	if cmp.Equal(NewPlan(7, 300), NewPlan(8, 300)) {
		t.Error("two seeds have the same plan")
	}
	// A shorter plan is the beginning of a longer one, so that a breach can be
	// looked for in less.
	fixture.Equal(t, NewPlan(7, 300)[:100], NewPlan(7, 100))
}

// promotionCase is the books of a promotion that balance; tests spoil them.
type promotionCase struct {
	p       client.Promotion
	rows    []client.Payout
	sent    *sentPromotion
	charges map[string]Entry
}

func goodPromotion() *promotionCase {
	return &promotionCase{
		p: client.Promotion{
			ID: "1", Status: "CANCELLED", TotalCount: 3, Counts: client.Counts{Succeeded: 1, Failed: 1, Cancelled: 1}, AmountTotal: 60, AmountSucceeded: 10,
		},
		rows: []client.Payout{
			{TargetID: "1", Amount: 10, State: "SUCCEEDED", TransactionKey: "T-1"},
			{TargetID: "2", Amount: 20, State: "FAILED"},
			{TargetID: "3", Amount: 30, State: "CANCELLED"},
		},
		sent: &sentPromotion{
			maxAmount: 20, created: true, known: map[int]bool{1: true, 2: true},
			amounts: map[int][]int64{1: {9, 10}, 2: {20}, 3: {30}},
		},
		charges: map[string]Entry{"1": {Charges: 1, Amount: 10, TransactionKey: "T-1"}},
	}
}

// broken are the invariants that do not hold, without what the names have in
// common.
func broken(b *simBooks) []string {
	var out []string
	for _, v := range b.verdicts() {
		if !v.Holds {
			out = append(out, v.Invariant)
		}
	}
	return out
}

func TestSimPromotionBooks(t *testing.T) {
	t.Parallel()
	b := newSimBooks()
	c := goodPromotion()
	books := b.promotion(c.p, c.rows, c.sent, c.charges)
	if got := broken(b); len(got) > 0 || books.Charges != 1 || books.Charged != 10 || books.Paid != 10 {
		t.Fatalf("good books break %v: %+v, %+v", got, b.verdicts(), books)
	}
	const (
		uncharged = "nothing was charged that failed, was cancelled or belongs to a draft"
		charged   = "every succeeded payout was charged the right amount, with the same transaction key"
		counts    = "the counts and sums of every promotion match its rows"
		accepted  = "every accepted target has a row with an amount that was sent"
		closed    = "nothing is open any more"
	)
	for name, tt := range map[string]struct {
		spoil func(*promotionCase)
		want  string
	}{
		"ChargedTwice":           {func(c *promotionCase) { c.charges["1"] = Entry{Charges: 2, Amount: 10, TransactionKey: "T-1"} }, "no target is charged more than once"},
		"FailedAndCharged":       {func(c *promotionCase) { c.charges["2"] = Entry{Charges: 1, Amount: 5} }, uncharged},
		"CancelledAndCharged":    {func(c *promotionCase) { c.charges["3"] = Entry{Charges: 1, Amount: 5} }, uncharged},
		"ADraftIsPaid":           {func(c *promotionCase) { c.p.Status = "DRAFT" }, uncharged},
		"SucceededAndNotCharged": {func(c *promotionCase) { delete(c.charges, "1") }, charged},
		"AnotherKey":             {func(c *promotionCase) { c.charges["1"] = Entry{Charges: 1, Amount: 10, TransactionKey: "T-9"} }, charged},
		"TheCountsAreOff":        {func(c *promotionCase) { c.p.Counts.Failed, c.p.Counts.Cancelled = 2, 0 }, counts},
		"TheSumIsOff":            {func(c *promotionCase) { c.p.AmountSucceeded = 11 }, counts},
		"ARowTwice":              {func(c *promotionCase) { c.rows = append(c.rows, c.rows[1]) }, counts},
		"AStrangerIsCharged":     {func(c *promotionCase) { c.charges["9"] = Entry{Charges: 1, Amount: 5} }, "nothing else was charged"},
		"ATargetIsLost":          {func(c *promotionCase) { c.sent.known[7] = true }, accepted},
		"AnAmountThatNobodySent": {func(c *promotionCase) { c.sent.amounts[2] = []int64{21} }, accepted},
		"ARowNobodySent":         {func(c *promotionCase) { delete(c.sent.amounts, 3) }, accepted},
		"ARowIsOpen": {
			func(c *promotionCase) {
				c.rows[1].State, c.p.Counts = "UNKNOWN", client.Counts{Succeeded: 1, Unknown: 1, Cancelled: 1}
			},
			closed,
		},
		"ItStillRuns":     {func(c *promotionCase) { c.p.Status = "RUNNING" }, closed},
		"ABudgetIsPassed": {func(c *promotionCase) { c.sent.maxAmount = 9 }, "no budget is exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, c := newSimBooks(), goodPromotion()
			tt.spoil(c)
			b.promotion(c.p, c.rows, c.sent, c.charges)
			fixture.Equal(t, []string{tt.want}, broken(b))
		})
	}
}

// templateCase is the books of a template that balance; tests spoil them.
type templateCase struct {
	t        client.Template
	coupons  []client.Coupon
	sent     *sentTemplate
	outcomes []client.HistoryItem
}

func goodTemplate() *templateCase {
	at := func(second int) time.Time { return time.Date(2026, 11, 21, 10, 0, second, 0, time.UTC) }
	coupons := []client.Coupon{
		{ID: "1", Code: "A", UserID: "u1", Ticket: 1, Status: "CANCELLED", IssuedAt: at(1)},
		{ID: "2", Code: "B", UserID: "u2", Ticket: 2, Status: "USED", IssuedAt: at(2)},
		{ID: "3", Code: "C", UserID: "u1", Ticket: 4, Status: "ISSUED", IssuedAt: at(3)},
	}
	return &templateCase{
		t: client.Template{
			ID: "42", Mode: "STREAM", TotalQuantity: 2, PerUserLimit: 1, ReissueAfterCancel: true,
			Counters: client.TemplateCounters{TotalQuantity: 2, Stock: 0, Count: 2, IssuedTotal: 3},
		},
		coupons: coupons,
		sent: &sentTemplate{
			promised: map[string]client.Coupon{"1": {ID: "1", Code: "A", UserID: "u1", Ticket: 1}, "2": {ID: "2", Code: "B", UserID: "u2", Ticket: 2}},
			final:    map[string]string{"1": "CANCELLED"},
		},
		outcomes: []client.HistoryItem{
			{Ticket: 4, Status: "ISSUED", Coupon: &coupons[2]},
			{Ticket: 1, Status: "ISSUED", Coupon: &coupons[0]},
			{Ticket: 2, Status: "ISSUED", Coupon: &coupons[1]},
			{Ticket: 3, Status: "REJECTED", Reason: "SOLD_OUT"},
		},
	}
}

func TestSimTemplateBooks(t *testing.T) {
	t.Parallel()
	b := newSimBooks()
	c := goodTemplate()
	books := b.template(c.t, c.coupons, c.sent, c.outcomes)
	if got := broken(b); len(got) > 0 || books.Live != 2 || books.Issued != 3 || books.Cancelled != 1 {
		t.Fatalf("good books break %v: %+v, %+v", got, b.verdicts(), books)
	}
	const (
		tickets  = "tickets start at 1, have no gap and no duplicate (mode STREAM)"
		counters = "the counters of every template match its rows"
		promised = "every coupon that a response contained exists unchanged"
	)
	for name, tt := range map[string]struct {
		spoil func(*templateCase)
		want  []string
	}{
		"OneTooMany": {
			func(c *templateCase) {
				c.t.TotalQuantity, c.t.Counters = 1, client.TemplateCounters{TotalQuantity: 1, Stock: -1, Count: 2, IssuedTotal: 3}
			},
			[]string{"no template has more live coupons than its quantity"},
		},
		"MoreThanTheLimit": {
			func(c *templateCase) { c.t.ReissueAfterCancel = false },
			[]string{"no user has more coupons than the limit"},
		},
		"TheCountIsOff":       {func(c *templateCase) { c.t.Counters.Count = 1 }, []string{counters}},
		"TheStockIsOff":       {func(c *templateCase) { c.t.Counters.Stock = 1 }, []string{counters}},
		"AHole":               {func(c *templateCase) { c.outcomes = c.outcomes[:3] }, []string{tickets}},
		"ATicketTwice":        {func(c *templateCase) { c.outcomes[3].Ticket = 2 }, []string{tickets}},
		"AnOutcomeIsLost":     {func(c *templateCase) { c.outcomes = c.outcomes[1:] }, []string{tickets}},
		"OutOfOrder":          {func(c *templateCase) { c.coupons[2].IssuedAt = c.coupons[0].IssuedAt }, []string{tickets}},
		"APromiseIsForgotten": {func(c *templateCase) { c.sent.promised["9"] = client.Coupon{ID: "9", UserID: "u9"} }, []string{promised}},
		"AnotherCode": {func(c *templateCase) {
			c.sent.promised["2"] = client.Coupon{ID: "2", Code: "X", UserID: "u2", Ticket: 2}
		}, []string{promised}},
		"ACancelIsUndone": {
			func(c *templateCase) { c.sent.final["2"] = "CANCELLED" },
			[]string{"every used or cancelled coupon stays so"},
		},
		"SomebodyWaits": {
			func(c *templateCase) {
				c.t.TotalQuantity, c.t.Counters = 3, client.TemplateCounters{TotalQuantity: 3, Count: 2, IssuedTotal: 3, Waiting: 1}
			},
			[]string{"no request waits any more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, c := newSimBooks(), goodTemplate()
			tt.spoil(c)
			b.template(c.t, c.coupons, c.sent, c.outcomes)
			fixture.Equal(t, tt.want, broken(b))
		})
	}
}
