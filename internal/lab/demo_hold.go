package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/largesse/largesse/client"
)

const (
	demoHoldSeconds = 2
	demoHoldPoll    = 50 * time.Millisecond
	demoHoldWait    = 30 * time.Second // for a coupon
)

// hold shows a coupon that its user does not confirm: its place goes to the next
// shopper.
func (d *demoRun) hold(ctx context.Context) error {
	d.say("\nA held coupon: one coupon, which must be confirmed within %d s.\n", demoHoldSeconds)
	t, err := d.client.CreateTemplate(ctx, client.NewTemplate{Name: "Demo: the last seat", TotalQuantity: 1, HoldSeconds: demoHoldSeconds})
	if err != nil {
		return fmt.Errorf("create the held coupon: %w", err)
	}
	first, err := d.takeHeld(ctx, t.ID, "ann")
	if err != nil {
		return err
	}
	d.say("ann gets it, %s, and does not confirm it.", first.Status)
	next, err := d.takeHeld(ctx, t.ID, "ben")
	if err != nil {
		return err
	}
	kept, err := d.client.ConfirmCoupon(ctx, next.ID)
	if err != nil {
		return fmt.Errorf("confirm the coupon of ben: %w", err)
	}
	lost, err := d.client.Coupon(ctx, first.ID)
	if err != nil {
		return fmt.Errorf("read the coupon of ann: %w", err)
	}
	after, err := d.client.Template(ctx, t.ID)
	if err != nil {
		return fmt.Errorf("read the template of the held coupon: %w", err)
	}
	d.say("Its hold ends: it is %s (%s). ben gets the place and confirms: %s.", lost.Status, lost.Reason, kept.Status)
	d.say("\nInvariants of the hold")
	d.judged([]Verdict{
		{
			Invariant: "a coupon that is not confirmed in time is cancelled", Holds: first.Status == "HELD" && lost.Status == "CANCELLED" && lost.Reason == "HOLD_EXPIRED",
			Detail: fmt.Sprintf("from %s to %s, %s", first.Status, lost.Status, lost.Reason),
		},
		{
			Invariant: "its place goes to one other shopper", Holds: kept.Status == "ISSUED" && after.Counters.Count == 1 && after.Counters.IssuedTotal == 2,
			Detail: fmt.Sprintf("%d live, %d ever issued", after.Counters.Count, after.Counters.IssuedTotal),
		},
	})
	d.result.Drop.HeldBy, d.result.Drop.HoldPassedTo = lost.UserID, kept.UserID
	return nil
}

// takeHeld requests the coupon until the user has it.
func (d *demoRun) takeHeld(ctx context.Context, template, user string) (client.Coupon, error) {
	for {
		r, err := d.client.IssueCoupon(ctx, template, user, demoHoldWait)
		p, refused := errors.AsType[*client.Problem](err)
		switch {
		case err == nil && r.Coupon != nil:
			return *r.Coupon, nil
		case err != nil && (!refused || p.Code != "SOLD_OUT"):
			return client.Coupon{}, fmt.Errorf("request the held coupon for %s: %w", user, err)
		}
		select {
		case <-time.After(demoHoldPoll):
		case err := <-d.site.lost:
			return client.Coupon{}, err
		case <-ctx.Done():
			return client.Coupon{}, context.Cause(ctx)
		}
	}
}
