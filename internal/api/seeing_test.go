package api

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func TestMe(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	for role, want := range map[string]map[string]any{
		"viewer":  {"name": "the viewer", "role": "viewer"},
		"shopper": {"name": "u7", "role": "shopper"},
	} {
		a := b.do(t, "GET", "/v1/me", nil, "Authorization", "Bearer "+role)
		if diff := cmp.Diff(want, a.object(t)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", role, diff)
		}
	}
	open := setup(t)
	if got := open.do(t, "GET", "/v1/me", nil, ActorHeader, "alice").text(t, "name"); got != "alice" {
		t.Errorf("without authentication: %s", got)
	}
	expires := setup(t, func(c *Config) { c.Verifier = expiring{} })
	if got := expires.do(t, "GET", "/v1/me", nil, "Authorization", "Bearer viewer").text(t, "expiresAt"); got != "2026-11-21T01:02:03Z" {
		t.Errorf("expires at %s", got)
	}
}

// expiring is badges that expire.
type expiring struct{ badges }

func (e expiring) Verify(ctx context.Context, token string) (auth.Principal, error) {
	p, err := e.badges.Verify(ctx, token)
	p.ExpiresAt = testTime
	return p, err
}

func TestSettings(t *testing.T) {
	t.Parallel()
	b := setup(t, func(a *Config) {
		a.Settings = []client.Setting{{Name: "money.timeout", Value: "5s", Source: "default"}}
	})
	if got := strings.TrimSpace(b.json(t, "GET", "/v1/settings", "").body); got != `{"items":[{"name":"money.timeout","value":"5s","source":"default"}]}` {
		t.Errorf("settings %s", got)
	}
}

func TestReconciliationList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, r := range []store.Reconciliation{{ID: 1, Checked: -1, Drifts: -1, Repaired: -1}, {ID: 2, Checked: 5, Drifts: 1}, {ID: 3, Checked: 5, Drifts: 2}} {
		r.Report, r.At = []byte("{}"), testTime
		fixture.OK(t, b.store.ReconciliationSave(t.Context(), r))
	}
	const second = `{"items":[{"id":"1","at":"2026-11-21T01:02:03Z"}]}`
	first := `{"items":[{"id":"3","at":"2026-11-21T01:02:03Z","checked":5,"drifts":2,"repaired":0},{"id":"2","at":"2026-11-21T01:02:03Z","checked":5,"drifts":1,"repaired":0}],"nextCursor":"` +
		encodeCursor(cursorReconciliations, 2) + `"}`
	for query, want := range map[string]string{"": first, "&cursor=" + encodeCursor(cursorReconciliations, 2): second} {
		if got := strings.TrimSpace(b.json(t, "GET", "/v1/reconciliations?limit=2"+query, "").body); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	b.json(t, "GET", "/v1/reconciliations?cursor=x", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
}

// TestUnknownAndErrors: the UNKNOWN payouts of all promotions and the errors of one
// come from real rows.
func TestUnknownAndErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.store
	for _, id := range []string{"1", "2"} {
		b.create(t, `{"id":`+id+`,"name":"p","type":"POINT","amount":10}`)
		b.upload(t, "/v1/promotions/"+id+"/targets", "targetId,userId\n1,u1\n2,u2\n3,u3\n").result(t)
		b.json(t, "POST", "/v1/promotions/"+id+"/start", "").want(t, http.StatusAccepted)
	}
	now := time.Now()
	for promotion := range reward.PromotionID(2) {
		id := promotion + 1
		fixture.Must(s.PayoutDispatch(t.Context(), store.PayoutDispatchParams{PromotionID: id, Limit: 9, MaxLen: 9, Now: now}))(t)
		var outcomes []rules.Outcome
		for target := range reward.TargetID(3) {
			o := rules.Outcome{Ref: reward.Ref{PromotionID: id, TargetID: target + 1, Dispatch: 1}, Kind: rules.OutcomeNoAnswer, GiveUp: true, Code: "TIMEOUT", Message: "no response"}
			if target == 0 {
				o.Kind, o.Code, o.Message = rules.OutcomeRefused, "LIMIT", "said no"
				o.Attempts = []reward.Attempt{{Dispatch: 1, At: now, Class: reward.AnswerRefused, Code: "LIMIT"}}
			}
			outcomes = append(outcomes, o)
		}
		fixture.Must(s.PayoutFinish(t.Context(), store.PayoutFinishParams{Outcomes: outcomes, Lease: time.Second, Now: now.Add(time.Duration(id) * time.Millisecond)}))(t)
	}
	promotions, pages := b.pages(t, "/v1/payouts?state=UNKNOWN&limit=3", "promotionId")
	targets, _ := b.pages(t, "/v1/payouts?state=UNKNOWN&limit=3", "targetId")
	states, _ := b.pages(t, "/v1/payouts?state=UNKNOWN&limit=3", "state")
	if got, want := slices.Concat(promotions, targets, states), strings.Fields("1 1 2 2 2 3 2 3 UNKNOWN UNKNOWN UNKNOWN UNKNOWN"); pages != 2 || !slices.Equal(got, want) {
		t.Errorf("%d pages, got %q, want %q", pages, got, want)
	}
	if items := b.json(t, "GET", "/v1/payouts?userId=u3", "").object(t)["items"].([]any); len(items) != 2 {
		t.Errorf("of a user: %v", items)
	}
	if items := b.json(t, "GET", "/v1/payouts?olderThan=1h", "").object(t)["items"].([]any); len(items) != 0 {
		t.Errorf("older than an hour: %v", items)
	}
	for query, status := range map[string]int{"state=FAILED": 422, "olderThan=1w": 422, "olderThan=-1s": 422, "limit=0": 422, "cursor=x": 400, "cursor=" + encodeCursor(cursorUnknown, 7): 400} {
		if a := b.json(t, "GET", "/v1/payouts?"+query, ""); a.status != status {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
	want := `[{"code":"TIMEOUT","example":"no response","exampleTargetId":"2","class":"","failed":0,"retrying":0,"unknown":2},` +
		`{"code":"LIMIT","example":"said no","exampleTargetId":"1","class":"REFUSED","failed":1,"retrying":0,"unknown":0}]`
	if got := strings.TrimSpace(b.json(t, "GET", "/v1/promotions/1/errors", "").body); got != want {
		t.Errorf("errors %s, want %s", got, want)
	}
	b.create(t, `{"id":3,"name":"p","type":"POINT","amount":10}`)
	if got := strings.TrimSpace(b.json(t, "GET", "/v1/promotions/3/errors", "").body); got != "[]" {
		t.Errorf("without payouts: %s", got)
	}
	b.json(t, "GET", "/v1/promotions/9/errors", "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
}

// TestOlderThan covers the ages that the schema allows.
func TestOlderThan(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"": 0, "0s": 0, "90s": 90 * time.Second, "15m": 15 * time.Minute, "2h": 2 * time.Hour, "99999d": 99999 * 24 * time.Hour} {
		if got := olderThan(text); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}
