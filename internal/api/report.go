package api

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/largesse/largesse/client"
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

// ReportQuery selects how a report is shown.
type ReportQuery struct {
	Format string `query:"format" enum:"json,csv,xlsx" doc:"Absent: as Accept says"`
	Zone   string `query:"zone" maxLength:"100" doc:"Of days, as in the time zone database; absent: UTC" example:"Asia/Seoul"`
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
	lines func(R) (currency string, all []line),
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
		err := onlyQuery(r.URL.Query(), "format", "zone")
		if p, ok := any(in).(pathInput); ok && err == nil {
			err = p.parsePath(r.Context())
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
		currency, all := lines(out.Body)
		name := "report-" + r.PathValue("id")
		if kind == csvType {
			file := web.NewCSV(w, name+".csv", lineColumns...)
			a.EndCSV(file, r, file.Page(mapped(all, func(l line) []string { return l.texts(currency) })))
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.xlsx"`)
		if err := sheet.Write(w, "Report", cellsOf(all, currency)); err != nil {
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

func (l line) texts(currency string) []string {
	row := []string{l.section, l.item, "", "", "", l.detail}
	if l.count != nil {
		row[2] = strconv.FormatInt(*l.count, 10)
	}
	if l.amount != nil {
		row[3], row[4] = l.amount.Decimal(currency), currency
	}
	return row
}

// cellsOf returns lines as rows of a sheet, with numbers as numbers.
func cellsOf(all []line, currency string) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		if !yield(cells(lineColumns), nil) {
			return
		}
		for _, l := range all {
			row := cells(l.texts(currency))
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

// promotionReport reads counts, points and audit lines, but no payouts: a report of ten
// million of them costs the same as one of ten.
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
	failed, err := a.listPromotionErrors(ctx, &in.PromotionPath)
	if err != nil {
		return nil, err
	}
	out.Errors = failed.Body
	if out.Actions, err = a.actionsOf(ctx, "/v1/promotions/"+v.ID.String()); err != nil {
		return nil, err
	}
	if v.CreatedBy != "" {
		out.Actions = append([]client.ReportAction{{At: v.CreatedAt.UTC(), Actor: v.CreatedBy, Action: "create-promotion"}}, out.Actions...)
	}
	out.Undated = client.ReportSum{Count: v.Counts.Payouts[reward.Succeeded], Amount: int64(v.Counts.Amounts[reward.Succeeded])}
	if v.StartedAt.IsZero() {
		return outputOf(out, nil)
	}
	end := cmp.Or(v.FinishedAt, now)
	out.RunSeconds = new(max(int64(end.Sub(v.StartedAt).Seconds()), 0))
	if seconds := end.Sub(v.StartedAt).Seconds(); seconds > 0 {
		out.MeanPerSecond = rounded(float64(v.Counts.Payouts[reward.Succeeded]+v.Counts.Payouts[reward.Failed]) / seconds)
	}
	return outputOf(out, a.addTimeline(ctx, out, v, span{v.StartedAt, end.Add(time.Minute)}, zone))
}

// addTimeline adds to a report what the timeline of its promotion has.
func (a *API) addTimeline(ctx context.Context, out *client.PromotionReport, v store.PromotionView, s span, zone *time.Location) error {
	hours, err := a.cfg.Rows.PromotionTimeline(ctx, v.ID, s.aligned(reportHour))
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
	ended := func(p store.PromotionPoint) float64 { return float64(p.Succeeded + p.Failed) }
	peak, step, err := peakOf(s, func(s store.TimelineSpan) ([]store.PromotionPoint, error) {
		return a.cfg.Rows.PromotionTimeline(ctx, v.ID, s)
	}, func(p store.PromotionPoint) time.Duration { return p.Step }, ended)
	if err == nil && ended(peak) > 0 {
		out.Peak = &client.ReportPeak{At: peak.At, StepSeconds: step, PerSecond: *rounded(ended(peak) / float64(step))}
	}
	return err
}

// peakOf returns the point of a span with the highest value, and the length of its step.
func peakOf[P any](s span, read func(store.TimelineSpan) ([]P, error), stepOf func(P) time.Duration, value func(P) float64) (peak P, stepSeconds int64, err error) {
	points, err := readTimeline(TimelineQuery{Points: reportPoints}, s.from, s.to, read, stepOf, func(rows []P, _ store.TimelineSpan) []P { return rows })
	if err != nil || len(points.Body.Points) == 0 {
		return peak, 0, err
	}
	return slices.MaxFunc(points.Body.Points, func(a, b P) int { return cmp.Compare(value(a), value(b)) }), points.Body.StepSeconds, nil
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
		return l.Status >= http.StatusBadRequest || a.declared[l.Action].method == http.MethodGet
	})
	slices.SortFunc(found, func(a, b store.AuditLine) int { return cmp.Compare(a.ID, b.ID) })
	found = found[max(len(found)-store.BatchMax, 0):]
	return mapped(found, func(l store.AuditLine) client.ReportAction {
		return client.ReportAction{At: l.At.UTC(), Actor: l.Actor, Action: l.Action}
	}), nil
}

func amountsOf(c *reward.Counts) client.Amounts {
	as := reward.Counts{}
	for state, amount := range c.Amounts {
		as.Payouts[state] = int64(amount)
	}
	return client.Amounts(countsOf(&as))
}

// promotionLines returns a report as lines of a file.
func promotionLines(r *client.PromotionReport) (currency string, all []line) {
	p := r.Promotion
	add := func(section, item, detail string) {
		if detail != "" {
			all = append(all, line{section: section, item: item, detail: detail})
		}
	}
	sum := func(section, item string, count, amount int64) {
		all = append(all, line{section: section, item: item, count: &count, amount: new(reward.Amount(amount))})
	}
	add("promotion", "id", p.ID)
	add("promotion", "name", p.Name)
	add("promotion", "type", p.Type)
	add("promotion", "status", p.Status)
	for _, moment := range []struct {
		item string
		at   *time.Time
	}{{"report", &r.At}, {"created", &p.CreatedAt}, {"started", p.StartedAt}, {"finished", p.FinishedAt}, {"paused", p.PausedAt}, {"cancelled", p.CancelledAt}, {"ends", p.EndsAt}} {
		if moment.at != nil {
			add("times", moment.item, moment.at.Format(time.RFC3339))
		}
	}
	if r.RunSeconds != nil {
		add("times", "run", (time.Duration(*r.RunSeconds) * time.Second).String())
	}
	sum("totals", "targets", p.TotalCount, p.AmountTotal)
	counts, amounts := p.Counts, r.Amounts
	sum("totals", "paid", counts.Succeeded, amounts.Succeeded)
	sum("totals", "refused or failed", counts.Failed, amounts.Failed)
	sum("totals", "unknown", counts.Unknown, amounts.Unknown)
	sum("totals", "cancelled", counts.Cancelled, amounts.Cancelled)
	sum("totals", "remaining", counts.Ready+counts.Queued+counts.Retrying, amounts.Ready+amounts.Queued+amounts.Retrying)
	if p.MaxAmount > 0 {
		all = append(all, line{section: "totals", item: "budget", amount: new(reward.Amount(p.MaxAmount))})
	}
	for _, e := range r.Errors {
		all = append(all, line{section: "errors", item: e.Code, count: new(e.Failed + e.Retrying + e.Unknown), detail: e.Example})
	}
	for _, d := range r.Days {
		sum("paid by day ("+r.Zone+")", d.Date, d.Succeeded, d.Amount)
	}
	if r.Undated != (client.ReportSum{}) {
		sum("paid by day ("+r.Zone+")", "other", r.Undated.Count, r.Undated.Amount)
	}
	number := func(item string, value *float64) {
		if value != nil {
			add("speed", item, strconv.FormatFloat(*value, 'f', -1, 64))
		}
	}
	number("payouts per second", r.MeanPerSecond)
	if r.Peak != nil {
		number(fmt.Sprintf("payouts per second, best %d s", r.Peak.StepSeconds), &r.Peak.PerSecond)
	}
	number("provider, median in ms", r.P50Millis)
	number("provider, 95 % below, in ms", r.P95Millis)
	number("provider, 99 % below, in ms", r.P99Millis)
	if p.ApprovedBy != "" {
		all = append(all, line{section: "approval", item: p.ApprovedBy, count: p.ApprovedCount, amount: (*reward.Amount)(p.ApprovedAmount)})
	}
	add("notes", "", p.Notes)
	return p.Currency, append(all, actionLines(r.Actions)...)
}

func actionLines(actions []client.ReportAction) []line {
	return mapped(actions, func(a client.ReportAction) line {
		return line{section: "actions", item: a.At.Format(time.RFC3339), detail: a.Actor + ": " + a.Action}
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
	all := span{v.CreatedAt, now.Add(time.Minute)}
	read := func(s store.TimelineSpan) ([]store.TemplatePoint, error) {
		return a.cfg.Rows.TemplateTimeline(ctx, in.id, s)
	}
	hours, err := read(all.aligned(reportHour))
	if err != nil {
		return nil, err
	}
	for _, p := range hours {
		day := dayOf(&out.Days, p.At, zone, func(d *client.TemplateDay) *string { return &d.Date })
		day.Asked, day.Issued, day.Refused = day.Asked+p.Asked, day.Issued+p.Issued, day.Refused+p.Refused
		out.Asked, out.Refused, out.UndatedIssued = out.Asked+p.Asked, out.Refused+p.Refused, out.UndatedIssued-p.Issued
	}
	out.UndatedIssued = max(out.UndatedIssued, 0)
	waiting := func(p store.TemplatePoint) float64 { return float64(p.Waiting) / float64(max(p.Samples, 1)) }
	peak, _, err := peakOf(all, read, func(p store.TemplatePoint) time.Duration { return p.Step }, waiting)
	if err == nil && waiting(peak) > 0 {
		out.WaitingPeak = &client.WaitingPeak{At: peak.At, Waiting: *rounded(waiting(peak))}
	}
	return outputOf(out, err)
}

// templateLines returns a report as lines of a file. It has no amounts.
func templateLines(r *client.TemplateReport) (currency string, all []line) {
	t := r.Template
	add := func(section, item, detail string) {
		all = append(all, line{section: section, item: item, detail: detail})
	}
	count := func(section, item string, n int64) { all = append(all, line{section: section, item: item, count: &n}) }
	add("template", "id", t.ID)
	add("template", "name", t.Name)
	for _, moment := range []struct {
		item string
		at   *time.Time
	}{{"report", &r.At}, {"created", &t.CreatedAt}, {"opens", t.OpensAt}, {"closes", t.ClosesAt}} {
		if moment.at != nil {
			add("times", moment.item, moment.at.Format(time.RFC3339))
		}
	}
	if r.SoldOutSeconds != nil {
		add("times", "sold out after", (time.Duration(*r.SoldOutSeconds) * time.Second).String())
	}
	count("totals", "quantity", t.TotalQuantity)
	count("totals", "issued", t.Counters.IssuedTotal)
	count("totals", "not cancelled", t.Counters.Count)
	count("totals", "cancelled", r.Cancelled)
	count("totals", "left", t.Counters.Stock)
	count("totals", "waiting", t.Counters.Waiting)
	count("requests", "answered", r.Asked)
	count("requests", "refused", r.Refused)
	if r.WaitingPeak != nil {
		count("requests", "most people in line", int64(r.WaitingPeak.Waiting))
	}
	for _, p := range r.Refusals {
		until := "now"
		if p.Until != nil {
			until = p.Until.Format(time.RFC3339)
		}
		add("refusals", p.Reason, p.Since.Format(time.RFC3339)+" to "+until)
	}
	for _, d := range r.Days {
		count("issued by day ("+r.Zone+")", d.Date, d.Issued)
	}
	if r.UndatedIssued > 0 {
		count("issued by day ("+r.Zone+")", "other", r.UndatedIssued)
	}
	if t.Notes != "" {
		add("notes", "", t.Notes)
	}
	return "", append(all, actionLines(r.Actions)...)
}
