package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// meanwhile calls change before each write, and counts the round trips.
type meanwhile struct {
	rows.DB
	change func()
	trips  *int
}

func (m meanwhile) Run(ctx context.Context, what string, mode rows.Mode, build func() []rows.Statement) error {
	if mode.Write {
		m.change()
	}
	*m.trips++
	return m.DB.Run(ctx, what, mode, build)
}

// rulesOfMeanwhile changes each column that a rule has looked at, after it was read and
// before the result is written. The rule must decide again, about what is then there.
func rulesOfMeanwhile(a *arena) {
	type call func(t *rows.Tables, id reward.TemplateID) (any, error)
	line := func(id reward.TemplateID) {
		second := rules.CouponRequest{UserID: "b", Ticket: 2, Reason: soldOut}
		a.inOrder(id, rules.CouponRequest{UserID: "a", Ticket: 1, CouponID: reward.CouponID(id), Code: fmt.Sprint(id)}, second)
		a.set(id, "coupon_templates", "generation = 1, granted = 5, used = 1")
	}
	leave := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		r, err := t.CouponLeave(a.ctx, store.CouponLeaveParams{TemplateID: id, Now: at(20), Leave: rules.Leave{UserID: "c", Ticket: 3, Generation: 1, GateGeneration: 1}})
		return fmt.Sprint(r.Outcome, " ", r.Template.Used), err
	}
	// settle returns a call for one request of user c. It knows the template, or not.
	settle := func(knows bool, p store.CouponSettleParams) call {
		return func(t *rows.Tables, id reward.TemplateID) (any, error) {
			p := p
			p.TemplateID, p.Generation, p.Now = id, 1, at(10)
			request := rules.CouponRequest{UserID: "c", Generation: 1, CouponID: reward.CouponID(1000 + id), Code: fmt.Sprint(1000 + id)}
			if p.Kind != rules.SettleDirect {
				request.Ticket = 3
			}
			p.Requests = []rules.CouponRequest{request}
			if known := a.stands(id); knows {
				p.Known = &known
			}
			res, err := t.CouponSettle(a.ctx, p)
			if err != nil || res.Refused != rules.NotRefused {
				return fmt.Sprint("refused ", res.Refused), err
			}
			c := res.Results[0].Coupon
			how := ""
			if c.ID != 0 {
				same(a.bundle, "stored coupon", a.coupon(c.ID), c)
				how = fmt.Sprint(" ", c.Ticket, " ", c.Status)
				if !c.ExpiresAt.IsZero() {
					how += " expires"
				}
			}
			return fmt.Sprint(told(res)[0], " ", res.Template.Settled, " ", res.Template.Used, how), err
		}
	}
	cancel := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		change, err := cancelOne(a.ctx, t, reward.CouponID(id), at(20))
		return fmt.Sprint(change.Template.Live, " ", change.To-change.From), err
	}
	enter := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		added, takes, err := t.EntrantSave(a.ctx, id, []string{"a"})
		return fmt.Sprint(takes, " ", added["a"]), err
	}
	started := func(id reward.TemplateID) { a.beginImport(id, int64(id)) }
	stage := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		taken, err := t.CodesStage(a.ctx, store.CodesStageParams{TemplateID: id, ImportID: int64(id), Codes: []string{"A"}, Now: at(0)})
		return taken.At, err
	}
	staged := func(id reward.TemplateID) {
		started(id)
		a.staged(id, int64(id), 0, codeNames(20)...)
		a.set(id, "coupon_templates", "granted = 1")
	}
	publish := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		change, err := t.CodesPublish(a.ctx, id, int64(id), 20, 10)
		return fmt.Sprint(change.Template.CodesImported, " ", change.Template.TotalQuantity, " ", change.Template.AwaitingQuantity), err
	}
	refused := func(id reward.TemplateID) { a.must(a.RefusalRecord(a.ctx, id, soldOut, at(2))) }
	refuse := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		if err := t.RefusalRecord(a.ctx, id, reward.CodeClosed, at(10)); err != nil {
			return nil, err
		}
		list, err := t.RefusalList(a.ctx, id, 9)
		var texts []string
		for _, r := range list {
			texts = append(texts, fmt.Sprint(r.Reason, " ", r.Since.Sub(at(0)).Seconds()))
		}
		return strings.Join(texts, ", "), err
	}
	places := func(c reward.CouponTemplate, moved bool, err error) (any, error) {
		return fmt.Sprint(moved, " ", c.Granted), err
	}
	grant := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		return places(t.TemplateGrant(a.ctx, store.TemplateGrantParams{ID: id, Generation: 1, Lacking: 3}))
	}
	shrink := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		return places(t.TemplateShrink(a.ctx, id, rules.Shrunk{Generation: 1, Granted: 2}))
	}
	release := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		return places(t.TemplateReleasePlaces(a.ctx, id))
	}
	resize := func(quantity int64) call {
		return func(t *rows.Tables, id reward.TemplateID) (any, error) {
			c, err := t.TemplateChange(a.ctx, rules.TemplateChange{ID: id, TotalQuantity: &quantity})
			return fmt.Sprint(c.TotalQuantity, " ", c.Name), err
		}
	}
	inKafka := func(t *rows.Tables, id reward.TemplateID) (any, error) {
		mode := reward.ModeKafka
		c, err := t.TemplateChange(a.ctx, rules.TemplateChange{ID: id, Mode: &mode})
		return c.Mode, err
	}
	archived := "archived_at = " + a.raw.Moment(at(10))
	second := func(format string, n int) string { return fmt.Sprintf(format, a.raw.Moment(at(n))) }
	later := a.raw.Moment(fromNow(30 * time.Minute))
	type meanwhileCase struct {
		prepare            func(id reward.TemplateID)
		call               call
		before, table, set string
		want               string // the result, or the code of the error
	}
	cases := []meanwhileCase{
		{line, leave, "", "coupon_templates", "", "1 2"},
		{line, leave, "", "coupon_templates", "path = 'DATABASE'", "0 1"},
		{line, leave, "", "coupon_templates", "mode = 'SYNC'", "0 1"},
		{line, leave, "", "coupon_templates", "generation = 2", "0 1"},
		{line, leave, "", "coupon_templates", "settled = 3", "3 1"},
		{line, leave, "", "coupon_templates", "used = granted", "1 5"},
		{line, leave, "used = granted", "coupon_templates", "granted = 6", "1 6"},
		{line, leave, "", "coupon_templates", archived, reward.CodeArchived},
		{line, leave, "", "coupon_rejections", "ticket = 3, generation = 1, reason = 'LEFT'", "2 1"},
		{line, leave, "", "coupons", "ticket = 3, generation = 1", "3 1"},
		{line, grant, "", "coupon_templates", "", "true 8"},
		{line, grant, "", "coupon_templates", "used = 3, live = 3, issued_total = 3", "true 8"},
		{line, grant, "", "coupon_templates", "generation = 2", "false 5"},
		{line, grant, "", "coupon_templates", "path = 'DATABASE'", "false 5"},
		{line, grant, "", "coupon_templates", "mode = 'SYNC'", "false 5"},
		{line, grant, "", "coupon_templates", "grants = 1", "false 5"},
		{line, grant, "", "coupon_templates", "total_quantity = 6", "true 6"},
		{line, grant, "", "coupon_templates", "codes_imported = 6", "true 6"},
		{line, grant, "", "coupon_templates", archived, reward.CodeArchived},
		{line, shrink, "", "coupon_templates", "", "true 2"},
		{line, shrink, "", "coupon_templates", "used = 3", "true 3"},
		{line, shrink, "", "coupon_templates", "grants = 1", "false 5"},
		{line, release, "path = 'DATABASE'", "coupon_templates", "", "true 1"},
		{line, release, "path = 'DATABASE'", "coupon_templates", "used = 3", "true 3"},
		{line, release, "path = 'DATABASE'", "coupon_templates", "path = 'GATE'", "false 5"},
		{line, resize(6), "", "coupon_templates", "", "6 spring"},
		{line, resize(6), "", "coupon_templates", "used = 3, live = 3, issued_total = 3", "6 spring"},
		{line, resize(6), "", "coupon_templates", "live = 4, issued_total = 4", reward.CodeConflict},
		{line, resize(6), "", "coupon_templates", "name = 'autumn'", "6 autumn"},
		{line, resize(6), "", "coupon_templates", archived, reward.CodeArchived},
		{line, resize(25), "codes_imported = 25", "coupon_templates", "", "25 spring"},
		{line, resize(25), "codes_imported = 25", "coupon_templates", "issued_total = 2", reward.CodeCodesExhausted},
		{nil, inKafka, "", "coupon_templates", "", "KAFKA"},
		{nil, inKafka, "", "coupon_templates", "settled = 1", reward.CodeConflict},
		{nil, inKafka, "", "coupon_templates", "granted = 1, grants = 1", reward.CodeConflict},
		{nil, inKafka, "", "coupon_templates", "draw_state = 'CLOSED'", reward.CodeConflict},
		{line, cancel, "", "coupons", "", "0 1"},
		{line, cancel, "", "coupons", second("status = 1, used_at = %s", 15), reward.CodeCouponUsed},
		{line, cancel, "", "coupon_templates", archived, reward.CodeArchived},
		{line, cancel, "", "coupons", second("held_until = %s, status = 4 - status", 15), reward.CodeUnavailable}, // at each write
		{nil, enter, "", "coupon_templates", "", "true true"},
		{nil, enter, "", "coupon_templates", "draw_state = 'CLOSED'", "false false"},
		{nil, enter, "", "coupon_templates", "draw_from = " + later, "false false"},
		{nil, enter, "", "coupon_templates", second("opens_at = %s", 15), "false false"},
		{started, stage, "", "coupon_code_imports", "", "-1"},
		{started, stage, "", "coupon_code_imports", "state = 2", reward.CodeConflict},
		{started, stage, "", "coupon_code_imports", "codes = 1", reward.CodeConflict},
		{staged, publish, "", "coupon_code_imports", "", "20 10 20"},
		{staged, publish, "", "coupon_code_imports", "state = 2", reward.CodeConflict},
		{staged, publish, "", "coupon_code_imports", "codes = 21", reward.CodeConflict},
		{staged, publish, "", "coupon_templates", "granted = 11", reward.CodeConflict},
		{staged, publish, "", "coupon_templates", "live = 1, issued_total = 1, used = 1", reward.CodeIllegalState},
		{staged, publish, "", "coupon_templates", "total_quantity = 21", reward.CodeCodesExhausted},
		{staged, publish, "", "coupon_templates", "awaiting_quantity = 40", "20 10 40"},
		{staged, publish, "", "coupon_templates", "codes_imported = 15", "35 15 20"},
		{staged, publish, "codes_imported = 15, issued_total = 10, live = 10", "coupon_templates", "live = 5, granted = 6", "35 11 20"},
		{staged, publish, fmt.Sprintf("codes_imported = %d, codes_returned = 20", reward.TemplateQuantityMax), "coupon_templates", "codes_returned = 19", reward.CodeConflict},
		{staged, publish, "", "coupon_templates", archived, reward.CodeArchived},
		{refused, refuse, "", "coupon_refusals", "", "CLOSED 10, SOLD_OUT 2"},
		{refused, refuse, "", "coupon_refusals", second("until = %s", 15), "CLOSED 15, SOLD_OUT 2"},
		{refused, refuse, "", "coupon_refusals", second("number = 2, since = %s", 12), "CLOSED 12, SOLD_OUT 12"},
		{refused, refuse, "", "coupon_refusals", second("number = 2, until = %s", 5), "CLOSED 10, SOLD_OUT 2"},
		{refused, refuse, "", "coupon_templates", archived, reward.CodeArchived},
	}
	const lockedUp = "mode = 'SYNC', opens_at = NULL"
	for _, knows := range []bool{true, false} {
		next := settle(knows, store.CouponSettleParams{Kind: rules.SettleInOrder})
		listed := settle(knows, store.CouponSettleParams{Kind: rules.SettleListed})
		direct := settle(knows, store.CouponSettleParams{Kind: rules.SettleDirect, Path: reward.PathGate, Fence: 5})
		cases = append(cases, []meanwhileCase{
			{line, next, "", "coupon_templates", "", "issued 3 2 3 ISSUED"},
			{line, next, "", "coupon_templates", "epoch = 1", "refused 1"},
			{line, next, "", "coupon_templates", "generation = 2", "refused 2"},
			{line, next, "", "coupon_templates", "path = 'DATABASE'", "refused 2"},
			{line, next, "", "coupon_templates", archived, "refused 5"},
			{line, next, "", "coupon_templates", "settled = 3", "before 3 1"},
			{line, next, "", "coupon_templates", "total_quantity = 1, granted = 1", "SOLD_OUT 3 1"},
			{line, next, "", "coupon_templates", "codes_imported = 1, granted = 1", "SOLD_OUT 3 1"},
			{line, next, "", "coupon_templates", "used = granted", "issued 3 5 3 ISSUED"},
			{line, next, "", "coupon_templates", "valid_for = 60", "issued 3 2 3 ISSUED expires"},
			{line, next, "", "coupon_templates", "hold_seconds = 60", "issued 3 2 3 HELD"},
			{line, next, "", "coupons", "user_id = 'c'", "USER_LIMIT 3 2"},
			{line, next, "per_user_limit = 2", "coupons", "user_id = 'c'", "issued 3 2 3 ISSUED"},
			{line, next, "", "coupon_rejections", "ticket = 3, generation = 1, reason = 'LEFT'", "before 3 1"},
			{line, listed, "", "coupon_templates", "settled = 9", "issued 9 2 3 ISSUED"},
			{line, listed, "", "coupon_templates", "generation = 2, floor = 2", "before 2 1"},
			{line, listed, "", "coupons", "ticket = 3, generation = 1", "before 2 1"},
			{line, listed, "", "coupon_rejections", "ticket = 3, generation = 1", "before 2 1"},
			{line, listed, "per_user_limit = 2", "coupons", "user_id = 'c', generation = 2", "before 2 1"},
			{line, direct, lockedUp, "coupon_templates", "settled = 7", "issued 8 1 8 ISSUED"},
			{line, direct, lockedUp, "coupon_templates", "generation = 2", "refused 2"},
			{line, direct, lockedUp, "coupon_templates", "mode = 'STREAM'", "refused 3"},
			{line, direct, lockedUp, "coupon_templates", "fence = 5", "refused 4"},
			{line, direct, lockedUp, "coupon_templates", "opens_at = " + later, "not open 2 1"},
			{line, direct, lockedUp, "coupon_templates", second("closes_at = %s", 15), "closed 2 1"},
			{line, direct, lockedUp, "coupon_templates", "total_quantity = 5", "PROMISED 2 1"},
			{line, direct, lockedUp, "coupon_templates", "codes_imported = 5", "PROMISED 2 1"},
		}...)
	}
	for i, tt := range cases {
		id := reward.TemplateID(i + 1)
		a.template(id, quantity(20), draw(-time.Hour, time.Hour))
		if tt.prepare != nil {
			tt.prepare(id)
		}
		a.set(id, "coupon_templates", tt.before)
		writes, trips := 0, 0
		t := a.raw.Tables(func(db rows.DB) rows.DB {
			return meanwhile{db, func() {
				if writes++; writes == 1 || tt.want == reward.CodeUnavailable {
					a.set(id, tt.table, tt.set)
				}
			}, &trips}
		})
		result, err := tt.call(t, id)
		got := fmt.Sprint(result)
		var e *reward.Error
		if errors.As(err, &e) {
			got = e.Code
		}
		if got != tt.want {
			a.errorf("case %d, %s: %s: got %s (%v), want %s", i, tt.table, tt.set, got, err, tt.want)
		}
	}
	// A batch of users who get their first coupon is one round trip.
	a.template(1000, quantity(20))
	trips := 0
	t := a.raw.Tables(func(db rows.DB) rows.DB { return meanwhile{db, func() {}, &trips} })
	known := a.stands(1000)
	requests := asks(1, "a", "b")
	requests[0].CouponID, requests[1].CouponID = 5001, 5002
	for n, want := range []string{"issued", "before"} {
		res := must(t.CouponSettle(a.ctx, store.CouponSettleParams{TemplateID: 1000, Known: &known, Requests: requests, Now: at(10)}))(a)
		same(a.bundle, "told", want, told(res)[0])
		same(a.bundle, "round trips", 1+n, trips)
		trips = 0
	}
	// Coupons of a user that are cancelled before each write delay no batch of the user.
	a.template(1001, quantity(20), limit(9), reissue)
	list := asks(1, "a", "a", "a")
	for i := range list {
		list[i].CouponID += 6000
		list[i].Code = list[i].CouponID.String()
	}
	a.inOrder(1001, list[:2]...)
	next := int64(0)
	cancelling := a.raw.Tables(func(db rows.DB) rows.DB {
		return meanwhile{db, func() {
			next++
			must(cancelOne(a.ctx, a.Tables, list[next-1].CouponID, at(20)))(a)
		}, &trips}
	})
	res := must(cancelling.CouponSettle(a.ctx, store.CouponSettleParams{TemplateID: 1001, Requests: list[2:], Now: at(10)}))(a)
	same(a.bundle, "told", []string{"issued"}, told(res))
	same(a.bundle, "round trips", 2, trips)
	same(a.bundle, "holds", []store.CouponHolding{{UserID: "a", Held: 2, CouponID: list[2].CouponID}}, res.Holdings)
	// A ticket that no gate gave remains one if the quantity rises meanwhile: its offset is not stored.
	a.template(1002, quantity(10))
	forged := asks(1, "a", "b")
	forged[0].CouponID, forged[0].Code, forged[1].Ticket = 7001, "7001", 500
	raised := a.raw.Tables(func(db rows.DB) rows.DB {
		return meanwhile{db, func() { a.set(1002, "coupon_templates", "total_quantity = 1000") }, &trips}
	})
	res = must(raised.CouponSettle(a.ctx, store.CouponSettleParams{
		TemplateID: 1002, Kind: rules.SettleListed, Requests: forged, Offsets: []store.Offset{{Topic: "forged", Next: 7}}, Now: at(10),
	}))(a)
	same(a.bundle, "told", []string{"issued", "never given"}, told(res))
	same(a.bundle, "offsets", 0, len(must(a.OffsetsGet(a.ctx, "forged"))(a)))
}

// set changes rows of a template. An empty change does nothing.
func (a *arena) set(id reward.TemplateID, table, change string) {
	a.Helper()
	key := "template_id"
	if table == "coupon_templates" {
		key = "id"
	}
	if change != "" {
		a.must(a.raw.Exec(fmt.Sprintf(`UPDATE %s SET %s WHERE %s = %d`, table, change, key, id)))
	}
}
