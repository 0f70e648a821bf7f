package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/client"
)

// rest removes all faults, waits until nothing is open, and records what stays
// open.
func (r *running) rest(ctx context.Context, report *SimReport) error {
	r.trace("waiting until nothing is open")
	if err := r.weather(ctx, Weather{}); err != nil {
		return err
	}
	r.inFlight.Wait()
	resumes := make(map[string]int)
	resumed := make(map[string]time.Time)
	deadline, told := time.Now().Add(simRest), ""
	for {
		open, err := r.openPromotions(ctx, func(p client.Promotion) error {
			if time.Since(resumed[p.ID]) < resumeEvery {
				return nil
			}
			resumed[p.ID] = time.Now()
			resumes[p.ID]++
			return r.help(ctx, p, resumes[p.ID])
		})
		if err != nil {
			return err
		}
		line, err := r.openTemplates(ctx)
		if err != nil {
			return err
		}
		open = append(open, line...)
		if len(open) == 0 {
			return nil
		}
		if text := strings.Join(open, "; "); text != told {
			r.trace("still open: %s", text)
			told = text
		}
		if time.Now().After(deadline) {
			report.open = open
			return nil
		}
		select {
		case <-time.After(simPoll):
		case err := <-r.up.Load().engine.Lost():
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// openPromotions describes what is still open in the promotions. It calls help
// for those that do not finish on their own.
func (r *running) openPromotions(ctx context.Context, help func(client.Promotion) error) (open []string, err error) {
	api := r.up.Load().api
	for p, err := range api.Promotions(ctx, "") {
		if err != nil {
			return nil, err
		}
		id, err := strconv.ParseInt(p.ID, 10, 64)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		want := 0
		if sent := r.note.promotions[id]; sent != nil {
			want = len(sent.known)
		}
		r.mu.Unlock()
		c := p.Counts
		switch {
		case p.TotalCount < int64(want):
			open = append(open, fmt.Sprintf("promotion %s has %d of %d targets", p.ID, p.TotalCount, want))
		case p.Status == "DRAFT":
		case p.Status == "PAUSED":
			open = append(open, fmt.Sprintf("promotion %s is PAUSED: %s", p.ID, p.PauseReason))
			if err := help(p); err != nil {
				return nil, err
			}
		case p.Status == "RUNNING" && c.Ready+c.Queued+c.Retrying == 0:
			// It waits for announced targets that were never sent, or for the
			// lease of an interrupted upload.
			open = append(open, "promotion "+p.ID+" is RUNNING without anything to pay")
			if err := help(p); err != nil {
				return nil, err
			}
		case p.Status == "RUNNING", c.Ready+c.Queued+c.Retrying+c.Unknown > 0, p.FinishedAt == nil:
			open = append(open, fmt.Sprintf("promotion %s is %s: %+v", p.ID, p.Status, c))
		}
	}
	return open, nil
}

// help does what an operator would do: it closes a promotion that waits for
// nothing and resumes a paused one. If that does not help, for example because
// the budget is spent, it cancels the promotion.
func (r *running) help(ctx context.Context, p client.Promotion, times int) error {
	api := r.up.Load().api
	what, move := "resume", api.ResumePromotion
	switch {
	case p.Status == "RUNNING":
		what, move = "close", api.ClosePromotion
	case times > resumeMost || times > 1 && p.MaxAmount > 0:
		what, move = "cancel", api.CancelPromotion
	}
	_, err := move(ctx, p.ID)
	r.trace("%s promotion %s: %v", what, p.ID, err)
	if err != nil && !refused(err) {
		return err
	}
	return nil
}

// openTemplates describes who still waits. Every user who was admitted since
// the last restart must get an outcome.
func (r *running) openTemplates(ctx context.Context) (open []string, err error) {
	api := r.up.Load().api
	for t, err := range api.Templates(ctx) {
		if err != nil {
			return nil, err
		}
		if t.Counters.Waiting > 0 || len(t.Degraded) > 0 {
			open = append(open, fmt.Sprintf("template %s: %d requests wait", t.ID, t.Counters.Waiting))
			continue
		}
		id, err := strconv.ParseInt(t.ID, 10, 64)
		if err != nil {
			return nil, err
		}
		for _, user := range r.waiters(id) {
			request := t.ID + ":" + user
			q, err := api.IssueRequest(ctx, request)
			var p *client.Problem
			switch {
			case errors.As(err, &p) && p.Status == 404:
				open = append(open, "request "+request+" is lost")
				continue
			case err != nil:
				return nil, err
			case q.Status == "WAITING":
				open = append(open, "request "+request+" waits")
				continue
			}
			r.mu.Lock()
			sent := r.note.templates[id]
			delete(sent.waiting, user)
			if q.Coupon != nil {
				sent.promised[q.Coupon.ID] = *q.Coupon
			}
			r.mu.Unlock()
		}
	}
	return open, nil
}

// waiters returns the users who were admitted at a template since the last
// restart.
func (r *running) waiters(id int64) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.note.templates[id]
	if sent == nil {
		return nil
	}
	var users []string
	for user := range sent.waiting {
		users = append(users, user)
	}
	slices.Sort(users)
	return users
}
