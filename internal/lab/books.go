package lab

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/largesse/largesse/client"
)

// Verdict reports whether an invariant holds.
type Verdict struct {
	Invariant string `json:"invariant"`
	Holds     bool   `json:"holds"`
	Detail    string `json:"detail"` // compared numbers, or the first breach
}

// Mark returns a column that reports whether the invariant holds.
func (v Verdict) Mark() string {
	if v.Holds {
		return "holds "
	}
	return "BROKEN"
}

// Account holds the books of one promotion on both sides.
type Account struct {
	Promotion client.Promotion
	Attempts  int64 // counted responses of the provider
	// Charges and Charged are the number and the amount of the provider's
	// charges.
	Charges, Charged int64
	Verdicts         []Verdict
}

// judge adds a verdict. It formats the numbers in the detail with separators.
func (a *Account) judge(invariant string, holds bool, format string, args ...any) {
	for i, arg := range args {
		switch n := arg.(type) {
		case int64:
			args[i] = humanize.Comma(n)
		case int:
			args[i] = humanize.Comma(int64(n))
		}
	}
	a.Verdicts = append(a.Verdicts, Verdict{invariant, holds, fmt.Sprintf(format, args...)})
}

// CheckBooks compares the rows of a finished promotion with the workload that
// was sent and with the provider's ledger.
func CheckBooks(ctx context.Context, c *client.Client, promotion string, expected Workload, ledger Ledger) (Account, error) {
	p, err := c.Promotion(ctx, promotion)
	if err != nil {
		return Account{}, fmt.Errorf("read promotion %s: %w", promotion, err)
	}
	a := Account{Promotion: p}
	charges := ledger[promotion]
	var (
		rows, final, succeeded, failed                   int64
		amount, paid                                     int64
		twice, failedButPaid, unpaid, otherSum, otherKey int64
	)
	seen := make(map[string]bool, p.TotalCount)
	for row, err := range c.Payouts(ctx, promotion, client.PayoutFilter{}) {
		if err != nil {
			return Account{}, fmt.Errorf("read the payouts of promotion %s: %w", promotion, err)
		}
		rows++
		seen[row.TargetID] = true
		amount += row.Amount
		a.Attempts += row.AttemptCount
		e, charged := charges[row.TargetID]
		a.Charges += int64(e.Charges)
		a.Charged += e.Amount
		if e.Charges > 1 {
			twice++
		}
		switch row.State {
		case "SUCCEEDED":
			final++
			succeeded++
			paid += row.Amount
			if !charged {
				unpaid++
			} else if e.Amount != row.Amount {
				otherSum++
			} else if e.TransactionKey != row.TransactionKey {
				otherKey++
			}
		case "FAILED", "CANCELLED":
			final++
			if row.State == "FAILED" {
				failed++
			}
			if charged {
				failedButPaid++
			}
		}
	}
	strangers := 0
	for target := range charges {
		if !seen[target] {
			strangers++
		}
	}
	counts := p.Counts
	a.judge("every accepted target has exactly one row", rows == int64(expected.Good) && int64(len(seen)) == rows && amount == expected.Amount,
		"rows: %v worth %v, targets: %v worth %v", rows, amount, expected.Good, expected.Amount)
	a.judge("every row is in one final state", p.Status == "COMPLETED" && final == rows,
		"%v of %v final, the promotion is %s", final, rows, p.Status)
	a.judge("the counts match the rows", counts.Succeeded == succeeded && counts.Failed == failed && counts.Done() == rows && p.TotalCount == rows,
		"counts: %v succeeded + %v failed; rows: %v + %v", counts.Succeeded, counts.Failed, succeeded, failed)
	a.judge("no target is charged twice", twice == 0, "charged more than once: %v", twice)
	a.judge("every succeeded payout was charged the right amount, with the same transaction key", unpaid+otherSum+otherKey == 0,
		"not charged: %v, another amount: %v, another key: %v", unpaid, otherSum, otherKey)
	a.judge("no failed payout was charged", failedButPaid == 0, "failed and charged: %v", failedButPaid)
	a.judge("nothing else was charged", strangers == 0, "charges without a row: %v", strangers)
	a.judge("the amount paid equals the amount charged", paid == p.AmountSucceeded && paid == a.Charged && succeeded == a.Charges,
		"rows: %v, counts: %v, provider: %v", paid, p.AmountSucceeded, a.Charged)
	return a, nil
}
