package test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// as is a client that acts in somebody's name.
func (r *rig) as(who string) *client.Client {
	r.t.Helper()
	return fixture.Must(client.New("http://"+r.engine.Addr(), client.Options{Actor: who}))(r.t)
}

func wantProblem(t *testing.T, err error, code string) {
	t.Helper()
	var p *client.Problem
	if !errors.As(err, &p) || p.Code != code {
		t.Errorf("error %v, want %s", err, code)
	}
}

// TestControls uses the operator's controls on a running engine.
func TestControls(t *testing.T) {
	t.Parallel()

	t.Run("WhatWasRefusedIsPaidAfterARetry", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, embedded, moneysim.Faults{RefuseRate: 1})
		id, workload := r.create(300, false, client.NewPromotion{})
		r.until(id, "refused", func(p client.Promotion) bool { return p.Status == "COMPLETED" && p.Counts.Failed == 300 })
		var failed bytes.Buffer
		if err := r.api.ExportPayouts(t.Context(), id, client.PayoutFilter{State: "FAILED"}, &failed); err != nil || strings.Count(failed.String(), "\n") != 301 {
			t.Errorf("%v: the export has %d lines", err, strings.Count(failed.String(), "\n"))
		}
		codes := map[string]int64{}
		code := ""
		for p, err := range r.api.Payouts(t.Context(), id, client.PayoutFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			code = p.ErrorCode
			codes[code]++
		}
		if n, err := r.api.RetryPayouts(t.Context(), id, "ANOTHER_"+code); err != nil || n != 0 {
			t.Errorf("%d requeued for a code that no payout has: %v", n, err)
		}
		fixture.OK(t, r.sim.SetFaults(moneysim.Faults{}))
		if n, err := r.api.RetryPayouts(t.Context(), id, code); err != nil || n != codes[code] {
			t.Errorf("%d requeued, want %d: %v", n, codes[code], err)
		}
		if n, err := r.api.RetryPayouts(t.Context(), id, ""); err != nil || n != 300-codes[code] {
			t.Errorf("%d requeued, want %d: %v", n, 300-codes[code], err)
		}
		account := r.balance(id, workload)
		checkCharges(t, r.sim, account)
		if n := account.Promotion.Counts.Succeeded; n != 300 {
			t.Errorf("%d succeeded", n)
		}
		report, err := r.api.Reconcile(t.Context(), id, true)
		if err != nil || report.Checked != 1 || len(report.Drifts) > 0 {
			t.Errorf("%+v: %v", report, err)
		}
		if again, err := r.api.Reconciliation(t.Context(), report.ID); err != nil || !again.At.Equal(report.At) {
			t.Errorf("%+v: %v", again, err)
		}
	})

	t.Run("WhatNobodyCanKnowIsResolved", func(t *testing.T) {
		t.Parallel()
		// Within an hour, a lookup that finds nothing does not count.
		r := newRig(t, embedded, moneysim.Faults{TimeoutRate: 1}, func(c *config.Config) { c.Money.SettleAfter, c.Money.GiveUpAfter = time.Hour, time.Second })
		id, _ := r.create(20, false, client.NewPromotion{MaxRetries: new(int)})
		var unknown []string
		// A lookup that finds a charge settles it.
		r.until(id, "unknown as far as nothing was charged", func(p client.Promotion) bool {
			return p.Status == "COMPLETED" && p.Counts.Succeeded == r.sim.Stats().Charges
		})
		for p, err := range r.api.Payouts(t.Context(), id, client.PayoutFilter{State: "UNKNOWN"}) {
			if err != nil {
				t.Fatal(err)
			}
			unknown = append(unknown, p.TargetID)
		}
		before := fixture.Must(r.api.Promotion(t.Context(), id))(t)
		kim := r.as("kim")
		for i, resolution := range []client.Resolution{
			{Outcome: "FAILED", Note: "never received, ticket 4711"}, {Outcome: "SUCCEEDED", TransactionKey: "T-1", Note: "on the statement"},
		} {
			p := fixture.Must(kim.ResolvePayout(t.Context(), id, unknown[i], resolution))(t)
			last := p.Log[len(p.Log)-1]
			if p.State != resolution.Outcome || p.TransactionKey != resolution.TransactionKey || last.Class != "RESOLVED" || last.Code != "kim" || last.Message != resolution.Note {
				t.Errorf("%+v", p)
			}
			_, err := kim.ResolvePayout(t.Context(), id, unknown[i], resolution)
			wantProblem(t, err, "ILLEGAL_STATE")
		}
		after, err := r.api.Promotion(t.Context(), id)
		if err != nil || after.Counts.Unknown > before.Counts.Unknown-2 || after.Counts.Failed != 1 {
			t.Errorf("%+v: %v", after.Counts, err)
		}
	})

	t.Run("ADeadLetterIsPublishedAgainAsItCame", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, embedded, moneysim.Faults{})
		p := r.publishing(77, 10)
		p.Malformed = 2
		records := fixture.Must(p.Publish(t.Context()))(t)
		r.balance("77", records)
		first := r.letters(client.DeadLetterFilter{Status: "OPEN"}, 2)
		kim := r.as("kim")
		if d, err := kim.ReplayDeadLetter(t.Context(), first[0].ID); err != nil || d.Status != "REPLAYED" || d.SettledBy != "kim" {
			t.Errorf("%+v: %v", d, err)
		}
		_, err := kim.ReplayDeadLetter(t.Context(), first[0].ID)
		wantProblem(t, err, "ILLEGAL_STATE")
		// It is still unreadable, so it is another dead letter.
		second := r.letters(client.DeadLetterFilter{Status: "OPEN", Reason: "MALFORMED", Source: first[0].Source}, 2)
		if second[0].ID == first[0].ID || second[0].Key != first[0].Key || second[0].Value != first[0].Value || !bytes.Equal(second[0].ValueBytes, first[0].ValueBytes) {
			t.Errorf("%+v became %+v", first[0], second[0])
		}
		if res, err := kim.DiscardDeadLetters(t.Context(), client.DeadLetterSelection{All: true}); err != nil || res != (client.DeadLettersSettled{Count: 2}) {
			t.Errorf("%+v: %v", res, err)
		}
		r.letters(client.DeadLetterFilter{Status: "OPEN"}, 0)
	})

	t.Run("ASecondPersonApproves", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, embedded, moneysim.Faults{}, func(c *config.Config) { c.Approval.Above = 999 })
		kim, lee := r.as("kim"), r.as("lee")
		made := fixture.Must(kim.CreatePromotion(t.Context(), client.NewPromotion{Name: "x", Type: "POINT", Amount: 500}))(t)
		fixture.Must(kim.UploadTargets(t.Context(), made.ID, strings.NewReader("targetId\n1\n2\n"), client.UploadOptions{}))(t)
		_, err := lee.StartPromotion(t.Context(), made.ID)
		wantProblem(t, err, "APPROVAL_NEEDED")
		_, err = kim.ApprovePromotion(t.Context(), made.ID)
		wantProblem(t, err, "SAME_PERSON")
		if p, err := lee.ApprovePromotion(t.Context(), made.ID); err != nil || p.CreatedBy != "kim" || p.ApprovedBy != "lee" {
			t.Errorf("%+v: %v", p, err)
		}
		fixture.Must(kim.StartPromotion(t.Context(), made.ID))(t)
		r.until(made.ID, "paid", func(p client.Promotion) bool { return p.Status == "COMPLETED" && p.AmountSucceeded == 1000 })
		_, err = kim.CreatePromotion(t.Context(), client.NewPromotion{Name: "x", Type: "POINT", WebhookURL: "https://hooks.example/x"})
		wantProblem(t, err, "INVALID") // webhook.secret is not set
	})
}

// letters waits for so many dead letters and returns them, the newest first.
func (r *rig) letters(f client.DeadLetterFilter, count int) (all []client.DeadLetter) {
	r.t.Helper()
	fixture.Until(r.t, fmt.Sprintf("%d dead letters", count), func() bool {
		all = nil
		for d, err := range r.api.DeadLetters(r.t.Context(), f) {
			if err != nil {
				r.t.Fatal(err)
			}
			all = append(all, d)
		}
		return len(all) == count
	})
	return all
}
