package rows

import (
	"context"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// AuditBegin adds a line. It ignores EndedAt, Status and Code. A known ID is
// CodeExists. An ID below 1 and a text that the database cannot store are
// CodeInvalid.
func (t *Tables) AuditBegin(ctx context.Context, l store.AuditLine) error {
	if err := l.Check(); err != nil {
		return err
	}
	added, err := t.change(ctx, "add an audit line", `INSERT INTO audit (id, at, actor, role, action, subject, detail, request_id, address, key_id, token_subject)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING RETURNING id`,
		l.ID, l.At, l.Actor, l.Role, l.Action, l.Subject, l.Detail, l.RequestID, l.Address, l.KeyID, l.TokenSubject)
	if err == nil && !added {
		err = reward.NewError(reward.KindConflict, reward.CodeExists, "audit line %d exists", l.ID)
	}
	return err
}

var endAudit = `UPDATE audit SET ended_at = $2, status = CAST($3 AS integer), code = $4,
  detail = CASE WHEN CAST($3 AS integer) BETWEEN 400 AND 499 THEN substr(detail, 1, ` + strconv.Itoa(store.AuditRefusedMax) + `) ELSE detail END
WHERE id = $1 AND ended_at IS NULL`

const dropAudit = `DELETE FROM audit WHERE id = $1 AND ended_at IS NULL`

// AuditDrop deletes a line that has no end, of a change that was refused and is counted
// elsewhere.
func (t *Tables) AuditDrop(ctx context.Context, id int64) error {
	return t.exec(ctx, "drop an audit line", dropAudit, id)
}

// AuditEnd ends a line. An unknown or ended line stays as it is. If status says that
// the change was refused, only store.AuditRefusedMax characters of Detail are kept.
func (t *Tables) AuditEnd(ctx context.Context, id int64, status int, code string, now time.Time) error {
	return t.exec(ctx, "end an audit line", endAudit, id, now, status, reward.SanitizeText(code))
}

// auditSQL returns the statement that reads a page of the audit. Lines of one
// subject, actor or action have an index in the order of the page; with several
// filters it walks the first of these. Lines below a subject do not: the statement
// reads all of them before it cuts the page. Without another filter it reads them
// from the index alone.
func (d Dialect) auditSQL(p store.AuditListParams) (sql string, args []any) {
	args = []any{below(p.Before), max(p.Limit, 0)}
	param := func(v string) string {
		args = append(args, v)
		return "CAST($" + strconv.Itoa(len(args)) + " AS text)"
	}
	const columns = `id, at, actor, role, action, subject, detail, request_id, address, ended_at, status, code, key_id, token_subject`
	where, order := `id < $1`, `id DESC`
	from, until, under := p.Below()
	walks := under
	if under {
		where += ` AND subject >= ` + param(from) + ` AND subject < ` + param(until)
	}
	for _, filter := range []struct{ column, value string }{{"subject", p.Subject}, {"actor", p.Actor}, {"action", p.Action}} {
		switch {
		case filter.value == "" || under && filter.column == "subject":
		case walks:
			where += ` AND ` + filter.column + ` || '' = ` + param(filter.value) // keeps the planner from another index
		default:
			walks = true
			where, order = d.Walk([]string{filter.column}, []string{param(filter.value)})
		}
	}
	if !under {
		return `SELECT ` + columns + ` FROM audit WHERE ` + where + ` ORDER BY ` + order + ` LIMIT $2`, args
	}
	return `WITH below AS MATERIALIZED (
  SELECT id AS line FROM audit WHERE ` + where + `
), page AS MATERIALIZED (
  SELECT line FROM below ORDER BY line DESC LIMIT $2
)
SELECT ` + columns + ` FROM page JOIN audit ON id = line ORDER BY id DESC`, args
}

// AuditList returns a page of lines by descending ID. A text that no line can
// have is CodeInvalid.
func (t *Tables) AuditList(ctx context.Context, p store.AuditListParams) ([]store.AuditLine, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	sql, args := t.dialect.auditSQL(p)
	return list(ctx, t.db.ReadLong, "list the audit", func(scan Scan, l *store.AuditLine) error {
		return scan(&l.ID, (*at)(&l.At), &l.Actor, &l.Role, &l.Action, &l.Subject, &l.Detail, &l.RequestID, &l.Address, (*at)(&l.EndedAt),
			&l.Status, &l.Code, &l.KeyID, &l.TokenSubject)
	}, sql, args...)
}
