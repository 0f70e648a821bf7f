package rows

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// series is a table of points. Its columns are sums.
type series struct {
	insert, read            string
	mark, fold, deleteMarks string
}

// newSeries returns the statements of a table. The key is the ID of what has the
// points.
//
// Folding marks the points with the negative step first. So the statements after it
// see exactly these points, whatever others write meanwhile, and a second instance
// that folds waits for them and finds that they are gone.
func newSeries(table, key string, columns []string) series {
	var params, sums, added []string
	for i, c := range columns {
		params = append(params, fmt.Sprintf("$%d", i+5))
		sums = append(sums, "CAST(sum("+c+") AS bigint)")
		added = append(added, c+" = t."+c+" + excluded."+c)
	}
	all, place := strings.Join(columns, ", "), key+", at, step, instance"
	return series{
		insert: `INSERT INTO ` + table + ` (` + place + `, ` + all + `) VALUES ($1, $2, $3, $4, ` + strings.Join(params, ", ") + `) ON CONFLICT DO NOTHING`,
		read: `SELECT at - at % $4, max(step), ` + strings.Join(sums, ", ") + ` FROM ` + table + `
WHERE ` + key + ` = $1 AND at >= $2 AND at < $3 GROUP BY at - at % $4 ORDER BY at - at % $4`,
		mark: `UPDATE ` + table + ` SET step = -step WHERE (` + place + `) IN (
  SELECT ` + place + ` FROM ` + table + ` WHERE step = $1 AND at < $2 ORDER BY step, at LIMIT $3
)`,
		fold: `INSERT INTO ` + table + ` AS t (` + place + `, ` + all + `)
SELECT ` + key + `, at - at % $2, CAST($2 AS integer), '', ` + strings.Join(sums, ", ") + ` FROM ` + table + ` WHERE step = $1 GROUP BY ` + key + `, at - at % $2
ON CONFLICT (` + place + `) DO UPDATE SET ` + strings.Join(added, ", "),
		deleteMarks: `DELETE FROM ` + table + ` WHERE step = $1 RETURNING step`,
	}
}

var (
	promotionPoints = newSeries("promotion_points", "promotion_id", slices.Concat(
		[]string{"succeeded", "failed", "retrying", "unknown", "call_millis", "waiting", "samples", "amount"}, callColumns()))
	templatePoints = newSeries("template_points", "template_id", slices.Concat([]string{"asked", "issued", "refused", "waiting", "samples"}, reasonColumns()))
)

// callColumns returns the columns of obs.PromotionSums.Calls.
func callColumns() []string {
	columns := make([]string, obs.LatencyBuckets)
	for i := range columns {
		columns[i] = fmt.Sprintf("calls_%d", i)
	}
	return columns
}

// reasonColumns returns the columns of obs.TemplateSums.Reasons.
func reasonColumns() []string {
	columns := make([]string, len(obs.RefusalReasons))
	for i, reason := range obs.RefusalReasons {
		columns[i] = "refused_" + strings.ToLower(reason)
	}
	return columns
}

// promotionSums returns pointers to the sums of a point, in the order of the columns.
func promotionSums(p *store.PromotionPoint) []any {
	into := []any{&p.Succeeded, &p.Failed, &p.Retrying, &p.Unknown, &p.CallMillis, &p.Waiting, &p.Samples, (*int64)(&p.Amount)}
	for i := range p.Calls {
		into = append(into, &p.Calls[i])
	}
	return into
}

func templateSums(p *store.TemplatePoint) []any {
	into := []any{&p.Asked, &p.Issued, &p.Refused, &p.Waiting, &p.Samples}
	for i := range p.Reasons {
		into = append(into, &p.Reasons[i])
	}
	return into
}

// values returns what the pointers point to.
func values(pointers []any) []any {
	out := make([]any, len(pointers))
	for i, p := range pointers {
		out[i] = *p.(*int64)
	}
	return out
}

// seconds returns a duration in whole seconds.
func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// TimelineWrite stores points of one instance. A point that is there already
// stays as it is, so a repeated call changes nothing.
func (t *Tables) TimelineWrite(ctx context.Context, instance string, promotions []store.PromotionPoint, templates []store.TemplatePoint) error {
	if err := store.CheckText("instance name", instance); err != nil {
		return err
	}
	if len(promotions)+len(templates) == 0 {
		return nil
	}
	return t.db.Write(ctx, "store points of timelines", func() []Statement {
		var statements []Statement
		for i := range promotions {
			p := &promotions[i]
			statements = append(statements, Statement{SQL: promotionPoints.insert, Args: append(
				[]any{int64(p.PromotionID), p.At.Unix(), seconds(p.Step), instance}, values(promotionSums(p))...)})
		}
		for i := range templates {
			p := &templates[i]
			statements = append(statements, Statement{SQL: templatePoints.insert, Args: append(
				[]any{int64(p.TemplateID), p.At.Unix(), seconds(p.Step), instance}, values(templateSums(p))...)})
		}
		return statements
	})
}

// TimelineFold replaces at most limit points of a step that begin before a time
// by points of a longer step, the oldest first. It returns how many points it
// replaced, of promotions and of templates.
func (t *Tables) TimelineFold(ctx context.Context, p store.TimelineFoldParams) (int, error) {
	from, to := seconds(p.From), seconds(p.To)
	// Only whole steps are folded, so that each ends up in one point.
	before := p.Before.Unix() - p.Before.Unix()%to
	folded := 0
	for _, s := range []series{promotionPoints, templatePoints} {
		points := 0
		err := t.db.Write(ctx, "fold points of timelines", func() []Statement {
			points = 0
			return []Statement{
				{SQL: s.mark, Args: []any{from, before, max(p.Limit, 0)}},
				{SQL: s.fold, Args: []any{-from, to}},
				{SQL: s.deleteMarks, Args: []any{-from}, Row: counted(&points)},
			}
		})
		if err != nil {
			return folded, err
		}
		folded += points
	}
	return folded, nil
}

// PromotionTimeline returns the points of a promotion in steps of a given length,
// each the sum of all instances, by time. Steps without points are left out.
func (t *Tables) PromotionTimeline(ctx context.Context, id reward.PromotionID, s store.TimelineSpan) ([]store.PromotionPoint, error) {
	return list(ctx, t.db.ReadLong, "read the timeline of a promotion", func(scan Scan, p *store.PromotionPoint) error {
		var at, step int64
		err := scan(append([]any{&at, &step}, promotionSums(p)...)...)
		p.PromotionID, p.At, p.Step = id, time.Unix(at, 0).UTC(), time.Duration(step)*time.Second
		return err
	}, promotionPoints.read, int64(id), s.From.Unix(), s.To.Unix(), seconds(s.Step))
}

// TemplateTimeline is PromotionTimeline for a coupon template.
func (t *Tables) TemplateTimeline(ctx context.Context, id reward.TemplateID, s store.TimelineSpan) ([]store.TemplatePoint, error) {
	return list(ctx, t.db.ReadLong, "read the timeline of a template", func(scan Scan, p *store.TemplatePoint) error {
		var at, step int64
		err := scan(append([]any{&at, &step}, templateSums(p)...)...)
		p.TemplateID, p.At, p.Step = id, time.Unix(at, 0).UTC(), time.Duration(step)*time.Second
		return err
	}, templatePoints.read, int64(id), s.From.Unix(), s.To.Unix(), seconds(s.Step))
}
