package rows

import (
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/store"
)

// searchedText is what a search looks through. A promotion that the previous
// version created has only its name and ID.
const searchedText = `coalesce(m.search, lower(m.name) || '
' || CAST(m.id AS text))`

// literal escapes the wildcards of LIKE.
var literal = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// promotionPage returns the statement that reads a page of promotions, and its
// arguments. A filter by status or creator alone has an index in the order of IDs.
// Every order has an index, which other filters walk.
func (d Dialect) promotionPage(p store.PromotionListParams) (sql string, args []any) {
	var where []string
	arg := func(value any) string {
		args = append(args, value)
		return "$" + strconv.Itoa(len(args))
	}
	order, direction, compare := "", "", ">"
	if p.Sort == "" || strings.HasPrefix(string(p.Sort), "-") {
		direction, compare = " DESC", "<"
	}
	status, creator := p.Status != "", p.CreatedBy != ""
	switch p.Sort {
	case "", store.SortIDDown:
		walk := "m.id < " + arg(below(int64(p.Last.ID)))
		order = "m.id DESC"
		switch {
		case creator:
			walk, order = d.Walk([]string{"m.created_by"}, []string{arg(p.CreatedBy)})
			creator = false
		case status:
			walk, order = d.Walk([]string{"m.status"}, []string{arg(string(p.Status))})
			status = false
		}
		where = append(where, walk)
	case store.SortID:
		where, order = append(where, "m.id > "+arg(int64(p.Last.ID))), "m.id"
	default:
		column, last := "m.created_at", any(p.Last.CreatedAt)
		switch p.Sort {
		case store.SortName, store.SortNameDown:
			column, last = "m.name"+d.ByBytes, p.Last.Name
		case store.SortStarts:
			column, last = "m.starts_at", p.Last.StartsAt
			where = append(where, "m.status = 'DRAFT' AND m.starts_at IS NOT NULL")
		}
		if p.Last.ID > 0 {
			where = append(where, "("+column+", m.id) "+compare+" ("+arg(last)+", "+arg(int64(p.Last.ID))+")")
		}
		order = column + direction + ", m.id" + direction
	}
	if status {
		where = append(where, "m.status = "+arg(string(p.Status)))
	}
	if creator {
		where = append(where, "m.created_by = "+arg(p.CreatedBy))
	}
	if !p.CreatedAfter.IsZero() {
		where = append(where, "m.created_at >= "+arg(p.CreatedAfter))
	}
	if !p.CreatedBefore.IsZero() {
		where = append(where, "m.created_at < "+arg(p.CreatedBefore))
	}
	if p.Search != "" {
		where = append(where, searchedText+" LIKE "+arg("%"+literal.Replace(strings.ToLower(p.Search))+"%")+` ESCAPE '\'`)
	}
	if p.AwaitingApproval {
		above := d.Limit(arg(Limits(p.ApprovalAbove)), "m.currency")
		where = append(where, "m.status IN ('DRAFT', 'PAUSED') AND m.rejected_by = '' AND "+above+" > 0 AND (m.unvalued_rounds > m.approved_rounds OR "+
			Worth+" > m.approved_amount AND ("+Worth+" > "+above+" OR "+Worth+" > m.day_granted))")
	}
	sql = `SELECT ` + detailColumns + ` FROM promotions m ` + d.Each("summaries", "s", "s.promotion_id = m.id AND s.summary_id = 0") + ` `
	if len(where) > 0 {
		sql += "WHERE " + strings.Join(where, " AND ") + " "
	}
	return sql + "ORDER BY " + order + " LIMIT " + arg(max(p.Limit, 0)), args
}
