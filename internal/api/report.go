package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// reportHour is the longest step of stored points. Days of zones that differ from UTC by
// whole hours are exact.
const reportHour = time.Hour

// reportPoints is the number of points among which the peak is.
const reportPoints = 1000

// countingLast is how long after the end of a promotion its timeline may still grow.
const countingLast = time.Minute

// askedWithin is how far a start or an end is from the request that caused it.
const askedWithin = 3 * time.Second

// firstMinutesLast is the length of TemplateReport.FirstMinutes.
const firstMinutesLast = 10 * time.Minute

// ReportQuery selects how a report is shown.
type ReportQuery struct {
	Format string `query:"format" enum:"json,csv,xlsx" doc:"Absent: as Accept says"`
	Zone   string `query:"zone" maxLength:"100" doc:"Of days, as in the time zone database; absent: UTC" example:"Asia/Seoul"`
	// Language is that of a file.
	Language string `query:"language" enum:"en,ko" default:"en" doc:"Of a CSV or .xlsx file, which in English has the codes of the API"`
}

// zone returns the zone of the days.
func (q *ReportQuery) zone() (*time.Location, error) {
	zone, err := time.LoadLocation(q.Zone)
	if err != nil || q.Zone == "Local" {
		return nil, web.Invalid("zone", reward.Quote(q.Zone)+" is no time zone that the server knows, such as Asia/Seoul")
	}
	return zone, nil
}

// line is a line of a report in a file.
type line struct {
	section, item string
	count         *int64
	amount        *reward.Amount
	detail        string
}

var lineColumns = []string{"section", "item", "count", "amount", "currency", "detail"}

// addReport adds an operation that answers with a report as JSON, or as lines of a file.
func addReport[I, R any](a *API, op operation, from func(r *http.Request) *I, read func(context.Context, *I) (*output[R], error),
	lines func(R, *words) (currency, unit string, all []line),
) {
	op.middlewares = huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
		kind := preferred(ctx.Header("Accept"), csvType, sheet.MediaType)
		if format := ctx.Query("format"); format != "" {
			kind = map[string]string{"csv": csvType, "xlsx": sheet.MediaType}[format]
		}
		if kind == "" {
			next(ctx)
			return
		}
		r, w := humago.Unwrap(ctx)
		in := from(r)
		var out *output[R]
		err := onlyQuery(r.URL.Query(), "format", "zone", "language")
		if p, ok := any(in).(pathInput); ok && err == nil {
			err = p.parsePath(r.Context())
		}
		var words *words
		if err == nil {
			words, err = a.wordsFor(r.URL.Query())
		}
		if err == nil {
			err = a.read(r.Context(), func(ctx context.Context) (err error) {
				out, err = read(ctx, in)
				return err
			})
		}
		if err != nil {
			a.Fail(w, r, err)
			return
		}
		currency, unit, all := lines(out.Body, words)
		name := "report-" + r.PathValue("id")
		if kind == csvType {
			file := web.NewCSV(w, name+".csv", mapped(lineColumns, words.say)...)
			a.EndCSV(file, r, file.Page(mapped(all, func(l line) []string { return l.texts(currency, unit) })))
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.xlsx"`)
		if err := sheet.Write(w, words.say("Report"), cellsOf(mapped(lineColumns, words.say), all, currency, unit)); err != nil {
			panic(http.ErrAbortHandler) // the caller must see that rows are missing
		}
	}}
	call(a, op, read)
	text := &huma.Schema{Type: huma.TypeString, Description: "Columns " + strings.Join(lineColumns, ", ") + "; amounts in major units"}
	content := a.OpenAPI().Paths[op.path].Get.Responses["200"].Content
	content[csvType] = &huma.MediaType{Schema: text}
	content[sheet.MediaType] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
}

// preferred returns the media type among some that Accept names before JSON or any, or "".
func preferred(accept string, some ...string) string {
	for part := range strings.SplitSeq(accept, ",") {
		media, _, err := mime.ParseMediaType(part)
		switch {
		case err != nil:
		case slices.Contains(some, media):
			return media
		case media == "application/json" || media == "*/*" || media == "application/*":
			return ""
		}
	}
	return ""
}

func (l line) texts(currency, unit string) []string {
	row := []string{l.section, l.item, "", "", "", l.detail}
	if l.count != nil {
		row[2] = strconv.FormatInt(*l.count, 10)
	}
	if l.amount != nil {
		row[3], row[4] = l.amount.Decimal(currency), unit
	}
	return row
}

// cellsOf returns a header and lines as rows of a sheet, with numbers as numbers.
func cellsOf(header []string, all []line, currency, unit string) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		if !yield(cells(header), nil) {
			return
		}
		for _, l := range all {
			row := cells(l.texts(currency, unit))
			if l.count != nil {
				row[2] = *l.count
			}
			if l.amount != nil {
				// Digits beyond those of a float64 would be lost, so they stay text.
				if number, err := strconv.ParseFloat(row[3].(string), 64); err == nil && *l.amount < 1e15 {
					row[3] = number
				}
			}
			if !yield(row, nil) {
				return
			}
		}
	}
}

func cells(texts []string) []any { return mapped(texts, func(s string) any { return s }) }

type promotionReportInput struct {
	PromotionPath
	ReportQuery
}

type templateReportInput struct {
	TemplatePath
	ReportQuery
}

func (a *API) addReports() {
	queryOf := func(r *http.Request) ReportQuery { return ReportQuery{Zone: r.URL.Query().Get("zone")} }
	addReport(a, operation{
		id: "get-promotion-report", method: http.MethodGet, path: "/v1/promotions/{id}/report", tag: "promotions", roles: readers,
		summary: "Get the report of a promotion as JSON, CSV or .xlsx",
		errors:  []string{reward.CodeNotFound},
	}, func(r *http.Request) *promotionReportInput {
		return &promotionReportInput{PromotionPath{ID: r.PathValue("id")}, queryOf(r)}
	}, a.promotionReport, promotionLines)
	addReport(a, operation{
		id: "get-template-report", method: http.MethodGet, path: "/v1/coupon-templates/{id}/report", tag: "coupon templates", roles: readers,
		summary: "Get the report of a template as JSON, CSV or .xlsx",
		errors:  []string{reward.CodeTemplateNotFound},
	}, func(r *http.Request) *templateReportInput {
		return &templateReportInput{TemplatePath{ID: r.PathValue("id")}, queryOf(r)}
	}, a.templateReport, templateLines)
}

// promotionReport reads counts, points and audit lines, and at most store.PayoutErrorSumMax
// payouts: a report of ten million of them costs little more than one of ten.
func (a *API) promotionReport(ctx context.Context, in *promotionReportInput) (*output[*client.PromotionReport], error) {
	zone, err := in.zone()
	if err != nil {
		return nil, err
	}
	v, err := a.cfg.Rows.PromotionGet(ctx, in.id)
	shown, err := a.withSummaries(ctx, v, err)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := &client.PromotionReport{At: now.UTC(), Promotion: *shown.Body, Amounts: amountsOf(&v.Counts), Zone: zone.String(), Days: []client.ReportDay{}}
	if out.Errors, err = a.errorsOf(ctx, v); err != nil {
		return nil, err
	}
	if out.Actions, err = a.promotionActions(ctx, v); err != nil {
		return nil, err
	}
	out.Undated = client.ReportSum{Count: v.Counts.Payouts[reward.Succeeded], Amount: int64(v.Counts.Amounts[reward.Succeeded])}
	if v.StartedAt.IsZero() {
		return outputOf(out, nil)
	}
	end := cmp.Or(v.FinishedAt, now)
	out.Counting = now.Sub(cmp.Or(v.FinishedAt, v.PausedAt, now)) < countingLast
	seconds := max(end.Sub(v.StartedAt).Seconds(), 0)
	out.RunSeconds = new(int64(math.Round(seconds)))
	if seconds > 0 {
		out.MeanPerSecond = rounded(float64(v.Counts.Payouts[reward.Succeeded]+v.Counts.Payouts[reward.Failed]) / seconds)
	}
	if err := a.addTimeline(ctx, out, v, span{v.StartedAt, end}, zone); err != nil {
		return nil, err
	}
	// Nothing is fastest that is slower than the mean: the timeline lacks something.
	if lacks := out.Counting && !v.FinishedAt.IsZero(); lacks || out.Peak != nil && out.MeanPerSecond != nil && out.Peak.PerSecond < *out.MeanPerSecond {
		out.Peak = nil
	}
	return outputOf(out, nil)
}

// errorsOf returns the error codes of a promotion with their amounts, and what remains of its
// counts as an entry without a code.
func (a *API) errorsOf(ctx context.Context, v store.PromotionView) ([]client.ReportError, error) {
	found, err := a.cfg.Rows.PayoutErrors(ctx, v.ID)
	if err != nil {
		return nil, err
	}
	amounts, err := a.cfg.Rows.PayoutErrorAmounts(ctx, v.ID, found)
	if err != nil {
		return nil, err
	}
	var rest store.PayoutError
	rest.Failed, rest.Retrying, rest.Unknown = v.Counts.Payouts[reward.Failed], v.Counts.Payouts[reward.Retrying], v.Counts.Payouts[reward.Unknown]
	worth := v.Counts.Amounts[reward.Failed] + v.Counts.Amounts[reward.Retrying] + v.Counts.Amounts[reward.Unknown]
	shown := mapped(found, func(e store.PayoutError) client.ReportError {
		out := client.ReportError{PromotionError: errorFor(e)}
		if amount, ok := amounts[e.Code]; ok {
			out.Amount = new(int64(amount))
			worth -= amount
		}
		rest.Failed, rest.Retrying, rest.Unknown = rest.Failed-e.Failed, rest.Retrying-e.Retrying, rest.Unknown-e.Unknown
		return out
	})
	// The rows are read after the counts, so they may have more.
	rest.Failed, rest.Retrying, rest.Unknown = max(rest.Failed, 0), max(rest.Retrying, 0), max(rest.Unknown, 0)
	if rest.Payouts() == 0 {
		return shown, nil
	}
	last := client.ReportError{PromotionError: client.PromotionError{Failed: rest.Failed, Retrying: rest.Retrying, Unknown: rest.Unknown}}
	if len(amounts) == len(found) && worth >= 0 {
		last.Amount = new(int64(worth))
	}
	return append(shown, last), nil
}

// addTimeline adds to a report what the timeline of its promotion has.
func (a *API) addTimeline(ctx context.Context, out *client.PromotionReport, v store.PromotionView, s span, zone *time.Location) error {
	hours, err := a.cfg.Rows.PromotionTimeline(ctx, v.ID, span{s.from, s.to.Add(time.Minute)}.aligned(reportHour))
	if err != nil {
		return err
	}
	var all store.PromotionPoint
	for _, p := range hours {
		all.Add(&p.PromotionSums)
		day := dayOf(&out.Days, p.At, zone, func(d *client.ReportDay) *string { return &d.Date })
		day.Succeeded, day.Amount, day.Failed = day.Succeeded+p.Succeeded, day.Amount+int64(p.Amount), day.Failed+p.Failed
	}
	out.Undated.Count, out.Undated.Amount = max(out.Undated.Count-all.Succeeded, 0), max(out.Undated.Amount-int64(all.Amount), 0)
	for share, into := range map[float64]**float64{0.5: &out.P50Millis, 0.95: &out.P95Millis, 0.99: &out.P99Millis} {
		if millis, ok := all.Percentile(share); ok {
			*into = rounded(millis)
		}
	}
	steps, step, err := stepsOf(s, func(s store.TimelineSpan) ([]store.PromotionPoint, error) {
		return a.cfg.Rows.PromotionTimeline(ctx, v.ID, s)
	}, func(p store.PromotionPoint) time.Duration { return p.Step })
	out.Peak = peakOf(steps, step, s, func(p store.PromotionPoint) (time.Time, int64) { return p.At, p.Succeeded + p.Failed })
	return err
}

// stepsOf returns the recorded steps of a span, at most reportPoints, and their length.
func stepsOf[P any](s span, read func(store.TimelineSpan) ([]P, error), stepOf func(P) time.Duration) ([]P, time.Duration, error) {
	found, err := readTimeline(TimelineQuery{Points: reportPoints}, s.from, s.to, read, stepOf, func(rows []P, _ store.TimelineSpan) []P { return rows })
	if err != nil {
		return nil, 0, err
	}
	return found.Body.Points, time.Duration(found.Body.StepSeconds) * time.Second, nil
}

// peakOf returns the step in which most was counted per second, or nil. The first step begins
// before the span, and the last one ends after it: what they count belongs to the part within.
func peakOf[P any](steps []P, step time.Duration, s span, count func(P) (time.Time, int64)) (peak *client.ReportPeak) {
	best := 0.0
	for _, p := range steps {
		at, n := count(p)
		within := span{at, at.Add(step)}
		if within.to.After(s.from) && within.from.Before(s.to) { // otherwise clocks differ
			within.from, within.to = latest(within.from, s.from), earliest(within.to, s.to)
		}
		length := max(within.to.Sub(within.from), min(s.to.Sub(s.from), time.Second), time.Millisecond)
		if perSecond := float64(n) / length.Seconds(); perSecond > best {
			best = perSecond
			peak = &client.ReportPeak{At: within.from.UTC(), StepSeconds: int64(math.Ceil(length.Seconds())), Count: n, PerSecond: *rounded(perSecond)}
		}
	}
	return peak
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// dayOf returns the day of a time in a zone, the last of days or a new one.
func dayOf[D any](days *[]D, at time.Time, zone *time.Location, date func(*D) *string) *D {
	text := at.In(zone).Format(time.DateOnly)
	if n := len(*days); n > 0 && *date(&(*days)[n-1]) == text {
		return &(*days)[n-1]
	}
	var day D
	*date(&day) = text
	*days = append(*days, day)
	return &(*days)[len(*days)-1]
}

// actionsOf returns who has changed what a path names, or what is below it.
func (a *API) actionsOf(ctx context.Context, path string) ([]client.ReportAction, error) {
	var found []store.AuditLine
	for _, subject := range []string{path, path + "/"} {
		lines, err := a.cfg.Rows.AuditList(ctx, store.AuditListParams{Subject: subject, Limit: store.BatchMax})
		if err != nil {
			return nil, err
		}
		found = append(found, lines...)
	}
	found = slices.DeleteFunc(found, func(l store.AuditLine) bool {
		return l.Status == 0 || l.Status >= http.StatusBadRequest || a.declared[l.Action].method == http.MethodGet
	})
	slices.SortFunc(found, func(a, b store.AuditLine) int { return cmp.Compare(a.ID, b.ID) })
	found = found[max(len(found)-store.BatchMax, 0):]
	return mapped(found, actionFor), nil
}

func actionFor(l store.AuditLine) client.ReportAction {
	out := client.ReportAction{At: l.At.UTC(), Actor: l.Actor, Action: l.Action}
	said := fieldsOf(l.Detail)
	if l.Action == "change-promotion" {
		if canary, ok := said["canary"].(map[string]any); ok && canary["maxFailureRate"] == nil {
			canary["maxFailureRate"] = json.Number(fmt.Sprint(campaign.CanaryMaxFailureRate))
		}
		out.Changes = said
		return out
	}
	out.Reason, _ = said["reason"].(string)
	out.FileName, _ = said["fileName"].(string)
	if n, ok := said["count"].(json.Number); ok {
		if count, err := n.Int64(); err == nil {
			out.Count = &count
		}
	}
	return out
}

// fieldsOf reads an object as far as it is complete: the audit cuts long ones, within the texts at their end.
func fieldsOf(text string) map[string]any {
	from := json.NewDecoder(strings.NewReader(text))
	from.UseNumber() // amounts may exceed 2^53
	fields := make(map[string]any)
	if _, err := from.Token(); err != nil {
		return nil
	}
	for from.More() {
		var value any
		name, err := from.Token()
		if err != nil || from.Decode(&value) != nil {
			break
		}
		if name, ok := name.(string); ok {
			fields[name] = value
		}
	}
	return fields
}

// promotionActions returns what people did to a promotion, and what it did by itself.
func (a *API) promotionActions(ctx context.Context, v store.PromotionView) ([]client.ReportAction, error) {
	all, err := a.actionsOf(ctx, "/v1/promotions/"+v.ID.String())
	if err != nil {
		return nil, err
	}
	add := func(at time.Time, actor, action string) {
		all = append(all, client.ReportAction{At: at.UTC(), Actor: actor, Action: action})
	}
	// What somebody asked for happens at that moment.
	asked := func(at time.Time, action string) bool {
		return slices.ContainsFunc(all, func(a client.ReportAction) bool {
			return a.Action == action && at.Sub(a.At).Abs() < askedWithin
		})
	}
	if v.CreatedBy != "" {
		add(v.CreatedAt, v.CreatedBy, "create-promotion")
	}
	if !v.StartedAt.IsZero() && !asked(v.StartedAt, "start-promotion") {
		add(v.StartedAt, "", "start-promotion")
	}
	switch {
	case v.FinishedAt.IsZero():
	case v.Status == reward.Completed:
		add(v.FinishedAt, "", "complete-promotion")
	case !asked(v.FinishedAt, "cancel-promotion"):
		add(v.FinishedAt, "", "settle-promotion")
	}
	slices.SortStableFunc(all, func(a, b client.ReportAction) int { return a.At.Compare(b.At) })
	return all, nil
}

func amountsOf(c *reward.Counts) client.Amounts {
	as := reward.Counts{}
	for state, amount := range c.Amounts {
		as.Payouts[state] = int64(amount)
	}
	return client.Amounts(countsOf(&as))
}

// promotionLines returns a report as lines of a file, whose amounts are in a currency with
// the name unit.
func promotionLines(r *client.PromotionReport, w *words) (currency, unit string, all []line) {
	p := r.Promotion
	add := func(section, item, detail string) {
		if detail != "" {
			all = append(all, line{section: w.say(section), item: w.say(item), detail: detail})
		}
	}
	sum := func(section, item string, count, amount int64) {
		all = append(all, line{section: w.say(section), item: w.say(item), count: &count, amount: new(reward.Amount(amount))})
	}
	add("promotion", "id", p.ID)
	add("promotion", "name", p.Name)
	add("promotion", "type", w.code("kind", p.Type))
	add("promotion", "status", w.code("state", p.Status))
	for _, moment := range []struct {
		item string
		at   *time.Time
	}{{"report", &r.At}, {"created", &p.CreatedAt}, {"started", p.StartedAt}, {"finished", p.FinishedAt}, {"paused", p.PausedAt}, {"cancelled", p.CancelledAt}, {"ends", p.EndsAt}} {
		if moment.at != nil {
			add("times", moment.item, w.moment(*moment.at))
		}
	}
	if r.RunSeconds != nil {
		add("times", "run", w.duration(time.Duration(*r.RunSeconds)*time.Second))
	}
	sum("totals", "targets", p.TotalCount, p.AmountTotal)
	counts, amounts := p.Counts, r.Amounts
	sum("totals", "paid", counts.Succeeded, amounts.Succeeded)
	sum("totals", "refused or failed", counts.Failed, amounts.Failed)
	sum("totals", "unknown", counts.Unknown, amounts.Unknown)
	sum("totals", "cancelled", counts.Cancelled, amounts.Cancelled)
	sum("totals", "remaining", counts.Ready+counts.Queued+counts.Retrying, amounts.Ready+amounts.Queued+amounts.Retrying)
	if p.MaxAmount > 0 {
		all = append(all, line{section: w.say("totals"), item: w.say("budget"), amount: new(reward.Amount(p.MaxAmount))})
	}
	for _, e := range r.Errors {
		item, detail := w.reason(e.Code, e.Example)
		if e.Code == "" {
			item, detail = w.say("other"), ""
		}
		all = append(all, line{section: w.say("errors"), item: item, count: new(e.Failed + e.Retrying + e.Unknown), amount: (*reward.Amount)(e.Amount), detail: detail})
	}
	for _, d := range r.Days {
		sum(w.days("paid by day", r.Zone), d.Date, d.Succeeded, d.Amount)
	}
	if r.Undated != (client.ReportSum{}) {
		sum(w.days("paid by day", r.Zone), w.rest(r.Counting), r.Undated.Count, r.Undated.Amount)
	}
	number := func(item string, value *float64) {
		if value != nil {
			add("speed", item, strconv.FormatFloat(*value, 'f', -1, 64))
		}
	}
	number("payouts per second", r.MeanPerSecond)
	if r.Peak != nil {
		number(fmt.Sprintf(w.say("payouts per second, best %d s"), r.Peak.StepSeconds), &r.Peak.PerSecond)
	}
	number("provider, median in ms", w.latency(r.P50Millis))
	number("provider, 95 % below, in ms", w.latency(r.P95Millis))
	if w.texts == nil { // people need no third one
		number("provider, 99 % below, in ms", r.P99Millis)
	}
	if p.ApprovedBy != "" {
		all = append(all, line{section: w.say("approval"), item: p.ApprovedBy, count: p.ApprovedCount, amount: (*reward.Amount)(p.ApprovedAmount)})
	}
	add("notes", "", p.Notes)
	return p.Currency, w.unit(p.Currency, p.Type), append(all, actionLines(r.Actions, w, p.Currency)...)
}

func actionLines(actions []client.ReportAction, w *words, currency string) []line {
	return mapped(actions, func(a client.ReportAction) line {
		parts := []string{a.Actor, w.code("audit", a.Action), a.Reason, a.FileName, w.changes(a.Changes, currency)}
		parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
		return line{section: w.say("actions"), item: w.moment(a.At), count: a.Count, detail: strings.Join(parts, ": ")}
	})
}

func (a *API) templateReport(ctx context.Context, in *templateReportInput) (*output[*client.TemplateReport], error) {
	zone, err := in.zone()
	if err != nil {
		return nil, err
	}
	v, err := a.cfg.Templates.Get(ctx, in.id)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := &client.TemplateReport{
		At: now.UTC(), Template: *templateFor(ctx, v), Cancelled: v.IssuedTotal - v.Live, Zone: zone.String(), UndatedIssued: v.IssuedTotal, Days: []client.TemplateDay{},
	}
	counts, err := a.cfg.Rows.CouponCounts(ctx, in.id)
	if err != nil {
		return nil, err
	}
	out.Coupons = couponCountsFor(&counts)
	out.Rejections = mapped(counts.Rejected, func(r store.RejectionCount) client.Rejections { return client.Rejections(r) })
	refusals, err := a.cfg.Rows.RefusalList(ctx, in.id, store.BatchMax)
	if err != nil {
		return nil, err
	}
	out.Refusals = mapped(refusals, func(r store.Refusal) client.RefusalPeriod {
		if r.Reason == reward.CodeSoldOut { // the oldest is the last one
			out.SoldOutSeconds = new(max(int64(r.Since.Sub(cmp.Or(v.OpensAt, v.CreatedAt)).Seconds()), 0))
		}
		return client.RefusalPeriod{Reason: r.Reason, Since: r.Since.UTC(), Until: timeOf(r.Until)}
	})
	if out.Actions, err = a.actionsOf(ctx, "/v1/coupon-templates/"+v.ID.String()); err != nil {
		return nil, err
	}
	if authors := v.Authors.Names(); len(authors) > 0 {
		out.Actions = append([]client.ReportAction{{At: v.CreatedAt.UTC(), Actor: authors[0], Action: "create-template"}}, out.Actions...)
	}
	return outputOf(out, a.addTemplateTimeline(ctx, out, v.ID, span{v.CreatedAt, now}, zone))
}

// couponCountsFor returns nil for an archived template, and leaves out what was not counted
// to the end.
func couponCountsFor(n *store.CouponCounts) *client.CouponCounts {
	if n.Archived {
		return nil
	}
	out := &client.CouponCounts{Used: n.Used, Expired: n.Expired, Held: n.Held, CancelledBy: []client.Canceller{}}
	if max(n.Used, n.Expired, n.Held) < store.CouponCountMax {
		out.Unused = new(n.Live - n.Used - n.Expired - n.Held)
	}
	if n.Cancelled <= store.EndedHoldsMax {
		out.HoldsExpired = &n.EndedHolds
		out.CancelledBy = mapped(n.CancelledBy, func(c store.Canceller) client.Canceller { return client.Canceller(c) })
	}
	return out
}

// addTemplateTimeline adds to a report what the timeline of its template has.
func (a *API) addTemplateTimeline(ctx context.Context, out *client.TemplateReport, id reward.TemplateID, all span, zone *time.Location) error {
	read := func(s store.TimelineSpan) ([]store.TemplatePoint, error) {
		return a.cfg.Rows.TemplateTimeline(ctx, id, s)
	}
	hours, err := read(span{all.from, all.to.Add(time.Minute)}.aligned(reportHour))
	if err != nil {
		return err
	}
	var sum obs.TemplateSums
	for _, p := range hours {
		sum.Add(&p.TemplateSums)
		day := dayOf(&out.Days, p.At, zone, func(d *client.TemplateDay) *string { return &d.Date })
		day.Asked, day.Issued, day.Refused = day.Asked+p.Asked, day.Issued+p.Issued, day.Refused+p.Refused
	}
	out.Asked, out.Refused, out.RefusedReasons, out.UndatedIssued = sum.Asked, sum.Refused, reasonsOf(&sum), max(out.UndatedIssued-sum.Issued, 0)
	if out.FirstMinutes, err = firstMinutes(hours, read); err != nil {
		return err
	}
	steps, step, err := stepsOf(all, read, func(p store.TemplatePoint) time.Duration { return p.Step })
	open := all
	if out.Template.OpensAt != nil {
		open.from = *out.Template.OpensAt
	}
	out.Peak = peakOf(steps, step, open, func(p store.TemplatePoint) (time.Time, int64) { return p.At, p.Issued })
	for _, p := range steps {
		if waiting := average(p.Waiting, p.Samples); waiting != nil && *waiting > 0 && (out.WaitingPeak == nil || float64(*waiting) > out.WaitingPeak.Waiting) {
			out.WaitingPeak = &client.WaitingPeak{At: p.At, Waiting: float64(*waiting)}
		}
	}
	return err
}

// reasonsOf returns why requests were refused, most first.
func reasonsOf(sum *obs.TemplateSums) []client.Rejections {
	reasons := []client.Rejections{}
	for i, n := range sum.Reasons {
		if n > 0 {
			reasons = append(reasons, client.Rejections{Reason: obs.RefusalReasons[i], Count: n})
		}
	}
	slices.SortStableFunc(reasons, func(a, b client.Rejections) int { return cmp.Compare(b.Count, a.Count) })
	return reasons
}

// firstMinutes returns the steps of a timeline from the first request on, as short as they
// are stored, but not shorter than a minute.
func firstMinutes(hours []store.TemplatePoint, read func(store.TimelineSpan) ([]store.TemplatePoint, error)) ([]client.TemplateStep, error) {
	steps := []client.TemplateStep{}
	for _, hour := range hours {
		if hour.Asked+hour.Issued == 0 {
			continue
		}
		points, err := read(store.TimelineSpan{From: hour.At, To: hour.At.Add(reportHour + firstMinutesLast), Step: time.Minute})
		for _, p := range points {
			switch {
			case len(steps) == 0 && p.Asked+p.Issued == 0:
			case len(steps) > 0 && p.At.Sub(steps[0].At) >= firstMinutesLast:
				return steps, nil
			default:
				steps = append(steps, client.TemplateStep{At: p.At, StepSeconds: int64(max(p.Step, time.Minute).Seconds()), Asked: p.Asked, Issued: p.Issued, Refused: p.Refused})
			}
		}
		return steps, err
	}
	return steps, nil
}

// templateLines returns a report as lines of a file. It has no amounts.
func templateLines(r *client.TemplateReport, w *words) (currency, unit string, all []line) {
	t := r.Template
	add := func(section, item, detail string) {
		all = append(all, line{section: w.say(section), item: w.say(item), detail: detail})
	}
	count := func(section, item string, n int64) {
		all = append(all, line{section: w.say(section), item: w.say(item), count: &n})
	}
	add("template", "id", t.ID)
	add("template", "name", t.Name)
	for _, moment := range []struct {
		item string
		at   *time.Time
	}{{"report", &r.At}, {"created", &t.CreatedAt}, {"opens", t.OpensAt}, {"closes", t.ClosesAt}} {
		if moment.at != nil {
			add("times", moment.item, w.moment(*moment.at))
		}
	}
	if r.SoldOutSeconds != nil {
		add("times", "sold out after", w.duration(time.Duration(*r.SoldOutSeconds)*time.Second))
	}
	count("totals", "quantity", t.TotalQuantity)
	if t.AwaitingQuantity > 0 {
		count("totals", "quantity that waits for approval", t.AwaitingQuantity)
	}
	count("totals", "issued", t.Counters.IssuedTotal)
	count("totals", "not cancelled", t.Counters.Count)
	count("totals", "cancelled", r.Cancelled)
	count("totals", "left", t.Counters.Stock)
	count("totals", "waiting", t.Counters.Waiting)
	all = append(all, couponLines(r.Coupons, r.Cancelled, w)...)
	count("requests", "answered", r.Asked)
	count("requests", "refused", r.Refused)
	if r.WaitingPeak != nil {
		count("requests", "most people in line", int64(r.WaitingPeak.Waiting))
	}
	unrecorded := r.Refused
	for _, p := range r.RefusedReasons {
		count("refused requests", w.code("refusal", p.Reason), p.Count)
		unrecorded -= p.Count
	}
	if unrecorded > 0 {
		count("refused requests", "reason not recorded", unrecorded)
	}
	for _, p := range r.Rejections {
		count("admitted requests without a coupon", w.code("refusal", p.Reason), p.Count)
	}
	for _, p := range r.Refusals {
		until := w.say("now")
		if p.Until != nil {
			until = w.moment(*p.Until)
		}
		add("refusals", w.code("refusal", p.Reason), fmt.Sprintf(w.say("%s to %s"), w.moment(p.Since), until))
	}
	for _, s := range r.FirstMinutes {
		all = append(all, line{
			section: w.say("issued in the first minutes"), item: w.moment(s.At), count: &s.Issued,
			detail: fmt.Sprintf(w.say("in %d s, of %d requests, %d refused"), s.StepSeconds, s.Asked, s.Refused),
		})
	}
	if r.Peak != nil {
		count("speed", fmt.Sprintf(w.say("most coupons in %d s"), r.Peak.StepSeconds), r.Peak.Count)
	}
	for _, d := range r.Days {
		count(w.days("issued by day", r.Zone), d.Date, d.Issued)
	}
	if r.UndatedIssued > 0 {
		count(w.days("issued by day", r.Zone), "other", r.UndatedIssued)
	}
	for _, d := range r.Days {
		count(w.days("requests by day", r.Zone), d.Date, d.Asked)
	}
	for _, d := range r.Days {
		count(w.days("refused by day", r.Zone), d.Date, d.Refused)
	}
	if t.Notes != "" {
		add("notes", "", t.Notes)
	}
	return "", "", append(all, actionLines(r.Actions, w, "")...)
}

// couponLines returns the coupons by status, and who cancelled them, as lines of a file.
func couponLines(n *client.CouponCounts, cancelled int64, w *words) (all []line) {
	if n == nil {
		return nil
	}
	for _, c := range []struct {
		item  string
		count *int64
	}{{"not used", n.Unused}, {"used", &n.Used}, {"expired", &n.Expired}, {"held, not confirmed yet", &n.Held}, {"cancelled, because nobody confirmed them", n.HoldsExpired}} {
		if c.count != nil {
			all = append(all, line{section: w.say("coupons"), item: w.say(c.item), count: c.count})
		}
	}
	for _, c := range n.CancelledBy {
		all = append(all, line{section: w.say("cancelled by"), item: c.Name, count: &c.Count})
		cancelled -= c.Count
	}
	if n.HoldsExpired != nil && len(n.CancelledBy) > 0 && cancelled > *n.HoldsExpired {
		all = append(all, line{section: w.say("cancelled by"), item: w.say("other"), count: new(cancelled - *n.HoldsExpired)})
	}
	return all
}
