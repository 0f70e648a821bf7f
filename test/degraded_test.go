package test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// degraded returns the parts that an instance calls degraded, or UNAVAILABLE if
// it is not ready.
func (r *rig) degraded() []string {
	r.t.Helper()
	ready, err := r.api.Ready(r.t.Context())
	if err != nil {
		return []string{"UNAVAILABLE"}
	}
	return ready.Degraded
}

// saysDegraded waits until the instance shows a part in /readyz with a reason, in
// largesse_degraded, and in one line of its log.
func (r *rig) saysDegraded(part string) {
	r.t.Helper()
	fixture.Until(r.t, "/readyz names "+part+" with a reason", func() bool {
		ready, err := r.api.Ready(r.t.Context())
		return err == nil && slices.Contains(ready.Degraded, part) && explains(ready.Troubles, part)
	})
	fixture.Until(r.t, "the metric says "+part, func() bool { return value(r.scrape(), "largesse_degraded", part) == 1 })
	r.saidOnce(part)
}

// saidOnce requires few lines about one outage of a part: one, or another if the machine is
// so busy that the part is late again.
func (r *rig) saidOnce(part string) {
	r.t.Helper()
	n := 0
	for line := range strings.Lines(r.lines.String()) {
		if strings.Contains(line, `"instance degraded"`) && strings.Contains(line, "part="+part) {
			n++
		}
	}
	if n == 0 || n > 5 {
		r.t.Errorf("%d lines say that %s is degraded, want 1", n, part)
	}
}

// explains reports whether troubles name a part with a reason.
func explains(troubles []client.Trouble, part string) bool {
	return slices.ContainsFunc(troubles, func(t client.Trouble) bool { return t.Part == part && t.Reason != "" })
}

// template creates a template with plenty of coupons.
func (r *rig) template(t client.NewTemplate) string {
	r.t.Helper()
	t.Name, t.TotalQuantity = r.t.Name(), 1000
	return fixture.Must(r.api.CreateTemplate(r.t.Context(), t))(r.t).ID
}

// issue requests n coupons, one per user, and repeats what got a 503 or a 429 or still waits.
func (r *rig) issue(template string, from, n int) {
	r.t.Helper()
	for i := range n {
		user := fmt.Sprintf("u%d", from+i)
		fixture.Until(r.t, "a coupon for "+user, func() bool {
			res, err := r.api.IssueCoupon(r.t.Context(), template, user, time.Minute)
			if p, ok := errors.AsType[*client.Problem](err); ok && (p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests) {
				return false
			}
			if err != nil || res.Status != "ISSUED" && res.Status != "WAITING" {
				r.t.Fatalf("coupon of %s: %+v, %v", user, res, err)
			}
			return res.Status == "ISSUED"
		})
	}
}

// waiting returns how many users are in line at a template.
func (r *rig) waiting(template string) int64 {
	r.t.Helper()
	return fixture.Must(r.api.Template(r.t.Context(), template))(r.t).Counters.Waiting
}

// onePerUser checks that a template has issued one coupon to each of n users.
func (r *rig) onePerUser(template string, n int) {
	r.t.Helper()
	users := make(map[string]int)
	for c, err := range r.api.TemplateCoupons(r.t.Context(), template) {
		if err != nil {
			r.t.Fatal(err)
		}
		users[c.UserID]++
	}
	for user, coupons := range users {
		if coupons != 1 {
			r.t.Errorf("user %s has %d coupons of template %s", user, coupons, template)
		}
	}
	if len(users) != n {
		r.t.Errorf("template %s has coupons of %d users, want %d", template, len(users), n)
	}
}
