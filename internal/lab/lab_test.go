package lab

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestMain(m *testing.M) { fixture.Main(m) }

// books is an API that reports one promotion of two targets, and the
// provider's ledger of it; tests spoil one or the other.
type books struct {
	promotion client.Promotion
	rows      []client.Payout
	expected  Workload
	ledger    Ledger
}

func goodBooks() *books {
	return &books{
		promotion: client.Promotion{ID: "1", Status: "COMPLETED", TotalCount: 2, Counts: client.Counts{Succeeded: 1, Failed: 1}, AmountTotal: 30, AmountSucceeded: 10},
		rows: []client.Payout{
			{TargetID: "1", Amount: 10, State: "SUCCEEDED", AttemptCount: 2, TransactionKey: "T-1"},
			{TargetID: "2", Amount: 20, State: "FAILED", AttemptCount: 1},
		},
		expected: Workload{Good: 2, Amount: 30},
		ledger:   Ledger{"1": {"1": Entry{Charges: 1, Amount: 10, TransactionKey: "T-1"}}},
	}
}

func (b *books) check(t *testing.T) Account {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/promotions/1", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(b.promotion) })
	mux.HandleFunc("GET /v1/promotions/1/payouts", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"items": b.rows})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	transport := &http.Transport{DisableKeepAlives: true}
	c := fixture.Must(client.New(server.URL, client.Options{Transport: transport}))(t)
	return fixture.Must(CheckBooks(t.Context(), c, "1", b.expected, b.ledger))(t)
}

func balanced(a Account) bool { return (&SimReport{Verdicts: a.Verdicts}).Holds() }

func TestCheckBooks(t *testing.T) {
	t.Parallel()
	t.Run("Balanced", func(t *testing.T) {
		t.Parallel()
		account := goodBooks().check(t)
		if !balanced(account) || account.Attempts != 3 || account.Charges != 1 || account.Charged != 10 {
			t.Errorf("account %+v", account)
		}
	})
	for name, spoil := range map[string]func(b *books){
		"ATargetIsMissing":            func(b *books) { b.expected.Good = 3 },
		"AnotherAmountCameIn":         func(b *books) { b.expected.Amount = 31 },
		"ARowIsOpen":                  func(b *books) { b.rows[1].State = "UNKNOWN" },
		"TheCountsAreOff":             func(b *books) { b.promotion.Counts.Failed = 0 },
		"ChargedTwice":                func(b *books) { b.ledger["1"]["1"] = Entry{Charges: 2, Amount: 20, TransactionKey: "T-1"} },
		"NotCharged":                  func(b *books) { delete(b.ledger["1"], "1") },
		"ChargedAnotherAmount":        func(b *books) { b.ledger["1"]["1"] = Entry{Charges: 1, Amount: 11, TransactionKey: "T-1"} },
		"AnotherTransaction":          func(b *books) { b.ledger["1"]["1"] = Entry{Charges: 1, Amount: 10, TransactionKey: "T-9"} },
		"FailedButCharged":            func(b *books) { b.ledger["1"]["2"] = Entry{Charges: 1, Amount: 20, TransactionKey: "T-2"} },
		"AStrangerWasCharged":         func(b *books) { b.ledger["1"]["3"] = Entry{Charges: 1, Amount: 20, TransactionKey: "T-3"} },
		"OurSumIsOff":                 func(b *books) { b.promotion.AmountSucceeded = 9 },
		"ItIsNotFinished":             func(b *books) { b.promotion.Status = "RUNNING" },
		"TheSameTargetIsTwoOfItsRows": func(b *books) { b.rows[1].TargetID = "1" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := goodBooks()
			spoil(b)
			if account := b.check(t); balanced(account) {
				t.Errorf("balanced all the same: %+v", account.Verdicts)
			}
		})
	}
}
