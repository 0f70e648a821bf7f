package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// Raw reads and writes the tables of a store without its methods. Rows can then
// begin in any state, even in one that no sequence of calls reaches.
type Raw struct {
	Exec func(sql string) error
	// Query returns every row as text. NULL becomes the empty text.
	Query func(sql string) ([][]string, error)
	// Moment returns a time as a literal. Micros returns an expression for the
	// microseconds of a column.
	Moment func(t time.Time) string
	Micros func(column string) string
	// Tables returns the shared methods of the store over the database that wrap returns.
	Tables func(wrap func(rows.DB) rows.DB) *rows.Tables
}

// ExerciseRules compares a driver with internal/rules, over every state, kind
// and flag that a rule depends on. The rows, attempts and counts that its
// statements leave must be those that the rules return. It tries one of share cases,
// always the same ones. It has one goroutine, in which the race detector finds nothing, so
// it is left out there.
func ExerciseRules(t *testing.T, share int, open Open, raw func(*rows.Tables) Raw) {
	t.Helper()
	if underRace {
		t.Skip("one goroutine compares a driver with the rules")
	}
	for name, part := range map[string]func(*arena){
		"Finish":    rulesOfFinish,
		"Settle":    rulesOfSettle,
		"Archive":   rulesOfTemplateArchive,
		"Confirm":   rulesOfConfirm,
		"Ended":     rulesOfEndedHolds,
		"Unseen":    rulesOfUnseenCodes,
		"Holds":     raceOfHolds,
		"Meanwhile": rulesOfMeanwhile,
	} {
		run(t, open, name, func(b *bundle) { part(b.arena(share, raw)) })
	}
}

// ExerciseRows runs tests that read or change rows as no method can.
func ExerciseRows(t *testing.T, open Open, raw func(*rows.Tables) Raw) {
	t.Helper()
	for name, part := range map[string]func(*arena){
		"Repair": exerciseRepair, "RepairOfEnded": exerciseRepairOfEnded, "RepairAmongWrites": exerciseRepairAmongWrites,
		"RefusedByCounts":    exerciseRefusedByCounts,
		"InstancesForgotten": exerciseInstancesForgotten, "IdempotencyForgotten": exerciseIdempotencyForgotten,
	} {
		run(t, open, name, func(b *bundle) { part(b.arena(1, raw)) })
	}
}

func (b *bundle) arena(share int, raw func(*rows.Tables) Raw) *arena {
	return &arena{
		bundle: b, share: share, raw: raw(b.Tables), rnd: rand.New(rand.NewPCG(1, 2)),
		rows: make(map[store.PayoutID]rules.Row), ids: make(map[reward.PromotionID][]store.PayoutID), counts: make(map[summary]reward.Counts),
		promotions: make(map[reward.PromotionID]reward.Promotion), attempts: make(map[attempt]bool),
	}
}

// stored counts the rows of a table.
func (a *arena) stored(table string) (n int) {
	a.Helper()
	a.query(`SELECT count(*) FROM `+table, func(f *fields) { n = int(f.number()) })
	return n
}

// arena is a store with the rows that it must have by the rules.
type arena struct {
	*bundle
	share      int
	raw        Raw
	rnd        *rand.Rand
	promotions map[reward.PromotionID]reward.Promotion
	rows       map[store.PayoutID]rules.Row
	ids        map[reward.PromotionID][]store.PayoutID
	counts     map[summary]reward.Counts
	attempts   map[attempt]bool
	wrong      int
}

type summary struct {
	promotion reward.PromotionID
	id        reward.SummaryID
}

type attempt struct {
	reward.Ref
	number int
	reward.Attempt
}

// odometer counts through every combination of choices. Case i picks its
// choices one after the other.
type odometer int

func (o *odometer) pick(of int) int {
	n := int(*o) % of
	*o /= odometer(of)
	return n
}

// leavesOut reports whether this test tries another case instead of case i. The cases that
// it tries follow no pattern, so that they have every combination of a few choices.
func (a *arena) leavesOut(i int) bool {
	return mix(uint64(i))%uint64(a.share) != 0 //nolint:gosec // both are positive
}

// mix spreads a number over 64 bits, as SplitMix64 does.
func mix(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

func (o *odometer) flag() bool { return o.pick(2) == 1 }

// oneOf returns one of the values.
func oneOf[T any](o *odometer, values ...T) T { return values[o.pick(len(values))] }

// statuses are those of promotions that can have payouts in any state.
var statuses = []reward.PromotionStatus{reward.Running, reward.Paused, reward.Completed, reward.PromotionCancelled, reward.Draft}

// promotion returns a promotion in a status.
func promotion(id reward.PromotionID, status reward.PromotionStatus) reward.Promotion {
	p := reward.Promotion{
		ID: id, Name: "summer", Type: reward.Point, Status: status, Amount: 100, Currency: "KRW", MaxRetries: 3, Weight: 1, Version: 1, CreatedAt: at(-3600),
	}
	if status != reward.Draft {
		p.StartedAt, p.LastDispatchedAt = at(-600), at(-300)
	}
	if status == reward.Completed {
		p.FinishedAt = at(-60)
	}
	if status == reward.Paused {
		p.PausedBy, p.PauseReason = "ann", "because"
	}
	return p
}

// begins adds a promotion to the rows that put writes.
func (a *arena) begins(p reward.Promotion) {
	a.promotions[p.ID] = p
	a.counts[summary{p.ID, 0}] = reward.Counts{}
}

// row returns a payout in a state that was dispatched twice. Fields that the
// tested rule does not use are random. Two of three rows belong to a summary.
func (a *arena) row(id reward.PromotionID, target reward.TargetID, state reward.State, flagged bool) rules.Row {
	r := rules.Row{Payout: reward.Payout{
		PromotionID: id, TargetID: target, SummaryID: reward.SummaryID(a.rnd.IntN(3)), UserID: "user", Amount: reward.Amount(1 + a.rnd.IntN(5)),
		State: state, Dispatch: 2, Attempts: int32(a.rnd.IntN(3)), MaybeCalled: flagged || state == reward.Unknown, //nolint:gosec // small
		FailedDeliveries: int32(a.rnd.IntN(4)), DueAt: at(-a.rnd.IntN(10)), FirstDispatchedAt: at(-90), UpdatedAt: at(-60), //nolint:gosec // small
	}}
	if state == reward.Unknown || a.rnd.IntN(2) == 0 {
		r.SettleFrom = at(-120)
		if a.rnd.IntN(2) == 0 {
			r.LookedAt = at(-90)
		}
	}
	if state == reward.Succeeded {
		r.TransactionKey = "paid"
	}
	if a.rnd.IntN(2) == 0 {
		r.ErrorCode, r.ErrorMessage = "OLD", "earlier"
	}
	r.Again = (state == reward.Failed || state == reward.Cancelled) && a.rnd.IntN(2) == 0
	return r
}

// keep adds a row to the rows that put writes.
func (a *arena) keep(r rules.Row) {
	id := idOf(r.Payout)
	if _, ok := a.rows[id]; ok {
		a.Fatalf("there are two rows %v", id)
	}
	a.rows[id], a.ids[r.PromotionID] = r, append(a.ids[r.PromotionID], id)
	a.count(r, func(c *reward.Counts) {
		c.Payouts[r.State]++
		c.Amounts[r.State] += r.Amount
		c.Attempts += int64(r.Attempts)
	})
}

// count changes the counts that include a row.
func (a *arena) count(r rules.Row, change func(c *reward.Counts)) {
	for _, id := range slices.Compact([]reward.SummaryID{0, r.SummaryID}) {
		c := a.counts[summary{r.PromotionID, id}]
		change(&c)
		a.counts[summary{r.PromotionID, id}] = c
	}
}

// becomes stores the expected result of a rule.
func (a *arena) becomes(next rules.Row, t rules.Tally, attempts ...reward.Attempt) {
	was := a.rows[idOf(next.Payout)]
	if t.Was != was.State || t.Became != next.State || !t.Changed && next != was {
		a.Fatalf("the tally %+v is not of the change from %+v to %+v", t, was, next)
	}
	a.rows[idOf(next.Payout)] = next
	a.count(was, func(c *reward.Counts) {
		c.Payouts[t.Was]--
		c.Amounts[t.Was] -= was.Amount
		c.Payouts[t.Became]++
		c.Amounts[t.Became] += was.Amount
		c.Attempts += t.Answers
	})
	for n, at := range attempts {
		if at.Code == reward.CodeSecondCharge {
			n = store.SecondChargeNumber
		}
		a.attempts[attempt{ref(next.PromotionID, next.TargetID, at.Dispatch), n, at}] = true
	}
}

// errorf reports a difference. It reports only the first few.
func (a *arena) errorf(format string, args ...any) {
	if a.wrong++; a.wrong <= 5 {
		a.Errorf(format, args...)
	}
}

func literal(v any) string {
	switch v := v.(type) {
	case string:
		return "'" + strings.ReplaceAll(v, "'", "''") + "'"
	case bool:
		return strings.ToUpper(strconv.FormatBool(v))
	default:
		return fmt.Sprint(v)
	}
}

// moment returns a time as a literal, NULL for the zero time.
func (a *arena) moment(t time.Time) sqlText {
	if t.IsZero() {
		return "NULL"
	}
	return sqlText(a.raw.Moment(t))
}

// sqlText is a piece of SQL, not a value.
type sqlText string

// insert writes rows, a thousand per statement.
func (a *arena) insert(into string, rows [][]any) {
	a.Helper()
	for part := range slices.Chunk(rows, 1000) {
		var b strings.Builder
		b.WriteString("INSERT INTO " + into + " VALUES ")
		for i, row := range part {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteByte('(')
			for j, v := range row {
				if j > 0 {
					b.WriteString(", ")
				}
				b.WriteString(literal(v))
			}
			b.WriteByte(')')
		}
		a.must(a.raw.Exec(b.String()))
	}
}

// approvedUntil returns the latest due time of the approved READY rows.
func (a *arena) approvedUntil(p reward.Promotion) (until time.Time) {
	for _, r := range a.of(p.ID) {
		if r.State == reward.Ready && p.Approval.Covers(r.ApprovalRound) && r.DueAt.After(until) {
			until = r.DueAt
		}
	}
	return until
}

// put writes the promotions, rows and counts.
func (a *arena) put() {
	a.Helper()
	var rows [][]any
	for _, id := range slices.Sorted(maps.Keys(a.promotions)) {
		p := a.promotions[id]
		expected := sqlText("NULL")
		if p.ExpectedCount != nil {
			expected = sqlText(literal(*p.ExpectedCount))
		}
		granted := sqlText("NULL")
		if p.Approval.Granted != nil {
			granted = sqlText(literal(int64(*p.Approval.Granted)))
		}
		rows = append(rows, []any{
			p.ID, p.Name, string(p.Type), string(p.Status), int64(p.Amount), p.Currency, p.MaxRetries, int64(p.MaxAmount), p.Canary.Targets,
			p.Canary.MaxFailureRate, p.Canary.Dispatched, p.Canary.Judged, expected, p.Closed, p.PausedBy, p.PauseReason, a.moment(p.StartsAt), a.moment(p.CreatedAt),
			a.moment(p.StartedAt), a.moment(p.FinishedAt), a.moment(p.LastDispatchedAt), p.StreamDestroyed, false, "",
			p.ApprovedBy, p.Approval.Round, p.Approval.Rounds, p.Approval.Unvalued, int64(p.Approval.Amount), p.Approval.Count,
			a.moment(a.approvedUntil(p)), p.RejectedBy, p.RejectReason, granted,
			a.moment(p.EndsAt), a.moment(p.PausedAt), p.CancelledBy, a.moment(p.CancelledAt),
		})
	}
	a.insert(`promotions (id, name, type, status, amount, currency, max_retries, max_amount, canary_targets, canary_max_failure_rate,
canary_dispatched, canary_judged, expected_count, closed, paused_by, pause_reason, starts_at, created_at, started_at, finished_at, last_dispatched_at,
stream_gone, registered, voucher_code, approved_by, approval_round, approved_rounds, unvalued_rounds, approved_amount, approved_count,
approved_until, rejected_by, reject_reason, day_granted, ends_at, paused_at, cancelled_by, cancelled_at)`, rows)
	rows = rows[:0]
	for s, c := range a.counts {
		row := []any{s.promotion, s.id, c.Attempts}
		for i := range c.Payouts {
			row = append(row, c.Payouts[i], int64(c.Amounts[i]))
		}
		rows = append(rows, row)
	}
	a.insert(`summaries (promotion_id, summary_id, attempts, ready, ready_amount, queued, queued_amount, retrying, retrying_amount,
unknown, unknown_amount, succeeded, succeeded_amount, failed, failed_amount, cancelled, cancelled_amount)`, rows)
	rows = rows[:0]
	for _, r := range a.rows {
		rows = append(rows, []any{
			r.PromotionID, r.TargetID, r.SummaryID, r.UserID, int64(r.Amount), r.VoucherCode, int16(r.State), r.Dispatch, r.Attempts,
			r.MaybeCalled, r.FailedDeliveries, a.moment(r.DueAt), a.moment(r.FirstDispatchedAt), a.moment(r.SettleFrom), a.moment(r.LookedAt),
			r.Again, r.TransactionKey, r.ErrorCode, r.ErrorMessage, a.moment(r.UpdatedAt), r.ApprovalRound,
		})
	}
	a.insert(`payouts (promotion_id, target_id, summary_id, user_id, amount, voucher_code, state, dispatch, attempts, maybe_called,
handovers, due_at, first_dispatched_at, settle_from, looked_at, again, transaction_key, error_code, error_message, updated_at,
approval_round)`, rows)
	a.holds("before the test")
}

// fields reads the columns of one row.
type fields struct {
	*arena
	texts []string
}

func (f *fields) text() string {
	s := f.texts[0]
	f.texts = f.texts[1:]
	return s
}

func (f *fields) number() int64 {
	return must(strconv.ParseInt(f.text(), 10, 64))(f)
}

func (f *fields) flag() bool { s := f.text(); return s == "1" || s == "t" }

func (f *fields) moment() time.Time {
	if f.texts[0] == "" {
		f.text()
		return time.Time{}
	}
	return time.UnixMicro(f.number()).UTC()
}

// query calls read with each row of a statement. In the statement, micros(…)
// stands for a time.
func (a *arena) query(sql string, read func(f *fields)) {
	a.Helper()
	for {
		before, rest, found := strings.Cut(sql, "micros(")
		if !found {
			break
		}
		column, after, _ := strings.Cut(rest, ")")
		sql = before + a.raw.Micros(column) + after
	}
	rows := must(a.raw.Query(sql))(a)
	for _, r := range rows {
		read(&fields{a, r})
	}
}

// holds fails the test unless promotions, rows, attempts and counts are those
// of the rules.
func (a *arena) holds(when string) {
	a.Helper()
	rows := make(map[store.PayoutID]rules.Row, len(a.rows))
	a.query(`SELECT promotion_id, target_id, summary_id, user_id, amount, voucher_code, state, dispatch, attempts, maybe_called,
handovers, micros(due_at), micros(first_dispatched_at), micros(settle_from), micros(looked_at), again, transaction_key, error_code,
error_message, micros(updated_at), approval_round FROM payouts`, func(f *fields) {
		var r rules.Row
		r.PromotionID, r.TargetID, r.SummaryID = reward.PromotionID(f.number()), reward.TargetID(f.number()), reward.SummaryID(f.number())
		r.UserID, r.Amount, r.VoucherCode, r.State = f.text(), reward.Amount(f.number()), f.text(), reward.State(f.number()) //nolint:gosec // small
		r.Dispatch, r.Attempts = int32(f.number()), int32(f.number())                                                        //nolint:gosec // small
		r.MaybeCalled, r.FailedDeliveries = f.flag(), int32(f.number())                                                      //nolint:gosec // small
		r.DueAt, r.FirstDispatchedAt, r.SettleFrom, r.LookedAt, r.Again = f.moment(), f.moment(), f.moment(), f.moment(), f.flag()
		r.TransactionKey, r.ErrorCode, r.ErrorMessage, r.UpdatedAt = f.text(), f.text(), f.text(), f.moment()
		r.ApprovalRound = int32(f.number()) //nolint:gosec // small
		rows[idOf(r.Payout)] = r
	})
	compare(a, when+": row", a.rows, rows)
	counts := make(map[summary]reward.Counts, len(a.counts))
	a.query(`SELECT promotion_id, summary_id, attempts, ready, ready_amount, queued, queued_amount, retrying, retrying_amount,
unknown, unknown_amount, succeeded, succeeded_amount, failed, failed_amount, cancelled, cancelled_amount FROM summaries`, func(f *fields) {
		s := summary{reward.PromotionID(f.number()), reward.SummaryID(f.number())}
		c := reward.Counts{Attempts: f.number()}
		for i := range c.Payouts {
			c.Payouts[i], c.Amounts[i] = f.number(), reward.Amount(f.number())
		}
		counts[s] = c
	})
	compare(a, when+": counts", a.counts, counts)
	attempts := make(map[attempt]bool, len(a.attempts))
	a.query(`SELECT promotion_id, target_id, dispatch, number, micros(at), class, code, message FROM attempts`, func(f *fields) {
		var t attempt
		t.PromotionID, t.TargetID, t.Ref.Dispatch = reward.PromotionID(f.number()), reward.TargetID(f.number()), int32(f.number()) //nolint:gosec // small
		t.Attempt.Dispatch, t.number = t.Ref.Dispatch, int(f.number())
		t.At, t.Class, t.Code, t.Message = f.moment(), reward.AnswerClass(f.text()), f.text(), f.text()
		attempts[t] = true
	})
	compare(a, when+": attempt", a.attempts, attempts)
	promotions := make(map[reward.PromotionID]reward.Promotion, len(a.promotions))
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(a.promotions)), store.BatchMax) {
		views := must(a.PromotionViews(a.ctx, ids))(a)
		for _, v := range views {
			promotions[v.ID] = v.Promotion
		}
	}
	compare(a, when+": promotion", a.promotions, promotions)
}

// compare reports the entries that differ.
func compare[K comparable, V any](a *arena, what string, want, got map[K]V) {
	a.Helper()
	for k, w := range want {
		g, ok := got[k]
		if !ok {
			a.errorf("%s %v is missing", what, k)
		} else if !equal(w, g) {
			a.errorf("%s %v (-want +got):\n%s", what, k, cmp.Diff(w, g, unexported))
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			a.errorf("%s %v should not be there", what, k)
		}
	}
}

// equal compares quickly where it can: cmp is slow over thousands of rows.
func equal[V any](a, b V) bool {
	if r, ok := any(a).(rules.Row); ok {
		return r == any(b).(rules.Row)
	}
	return cmp.Equal(a, b, unexported)
}

var unexported = cmp.AllowUnexported(attempt{})

func idOf(p reward.Payout) store.PayoutID {
	return store.PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}
}
