package postgres

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store/storetest"
)

// TestPlans checks that every main statement reaches payouts by an index, row
// by row, on a table that was never analyzed.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := fresh(t, 2)
	fillPlanTables(t, s)
	conn := acquire(t, s)
	// Rare rows have their own index, which must be used.
	indexes := map[string][]string{
		"queue due": {"payouts_open"}, "pick first payouts": {"payouts_open"}, "pick approved payouts": {"payouts_open"}, "pick retries": {"payouts_open"}, "pick returned payouts": {"payouts_back"}, "claim lookups": {"payouts_unknown", "payouts_again"},
		"due promotions": {"promotions_due"}, "promotions to ask for": {"promotions_due"},
		"slots of users": {"coupons_slot"}, "latest coupons of users": {"coupons_slot", "coupons_user"},
		"settled requests":       {"coupons_slot", "coupons_ticket", "coupon_rejections_pkey"},
		"same requests":          {"coupons_slot", "coupons_ticket", "coupon_rejections_pkey"},
		"tell of issued coupons": {"coupons_version"},
		"coupons of a user":      {"coupons_user"}, "coupons by code": {"coupons_code_of_template"}, "latest outcomes": {"coupons_slot", "coupon_rejections_user"},
		"history of a user": {"coupons_user", "coupon_rejections_user"}, "expired holds": {"coupons_slot"},
		"settled tickets": {"coupons_version", "coupon_rejections_version"}, "changed holdings": {"coupons_version", "coupons_slot"},
		"waiting line": {"coupons_slot", "coupon_rejections_user"},
		"holders":      {"coupons_slot"}, "expire coupons": {"coupons_expiry"},
		"end holds": {"coupons_held"}, "changed holders": {"coupons_version", "coupons_slot"}, "find ended holds": {"coupons_held"},
		"active templates": {"coupon_templates_closes", "coupon_templates_pkey"}, "has entrants": {"coupon_entrants_pkey"},
		"list entrants": {"coupon_entrants_pkey"}, "draws of a user": {"coupon_entrants_user", "coupon_templates_pkey"}, "latest refusal": {"coupon_refusals_pkey"}, "count what is sold out": {"coupon_templates_pkey"},
		"payouts of a user": {"payout_users_user", "payouts_pkey"}, "answers of a user": {"payout_users_user", "payouts_pkey", "attempts_pkey"},
		"promotions that paid users": {"payout_users_user", "payouts_pkey"},
		"views":                      {"promotions_pkey", "summaries_pkey"}, "active promotions": {"promotions_active"}, "whole list": {"promotions_active"},
		"changes": {"changes_changed", "promotions_active", "summaries_pkey"}, "find an API key": {"api_keys_hash"}, "list API keys": {"api_keys_pkey"},
		"use an API key": {"api_keys_pkey"}, "end an audit line": {"audit_pkey"}, "drop an audit line": {"audit_pkey"},
		"forget audit lines": {"audit_pkey"}, "forget dead letters": {"dead_letters_status", "dead_letters_pkey"},
		"read a key": {"idempotency_keys_pkey"}, "delete expired keys": {"idempotency_keys_first", "idempotency_keys_pkey"},
		"finish a key": {"idempotency_keys_pkey"}, "drop a key": {"idempotency_keys_pkey"}, "release a key": {"idempotency_keys_pkey"},
		"claim webhook deliveries": {"webhooks_open", "webhooks_pkey"},
		"assign a template":        {"coupon_templates_pkey"}, "list refusals": {"coupon_refusals_pkey"},
		"count coupons": {"coupon_templates_pkey", "coupons_listed"}, "count rejections": {"coupon_rejections_pkey"}, "count who cancelled coupons": {"coupons_listed"}, "amount of an error code": {"payouts_code"},
	}
	large := regexp.MustCompile(`using (changes|payout|attempts|coupon|audit|idempotency_keys|api_keys)`)
	for name, sql := range statements() {
		plan := planOf(t, conn, name, sql)
		for _, index := range indexes[name] {
			if !strings.Contains(plan, "using "+index+" ") {
				t.Errorf("%s does without %s:\n%s", name, index, plan)
			}
		}
		for _, bad := range []string{"Seq Scan", "Hash Join", "Hash Semi Join", "Hash Anti Join", "Merge Join", "Bitmap"} {
			if strings.Contains(plan, bad) {
				t.Errorf("%s has a %s:\n%s", name, bad, plan)
			}
		}
		// Every index scan of a table that may be large finds single rows. It does not
		// read all of them.
		lines := strings.Split(plan, "\n")
		for i, line := range lines {
			if large.MatchString(line) && (i+1 == len(lines) || !strings.Contains(lines[i+1], "Index Cond")) {
				t.Errorf("%s walks a whole index:\n%s", name, plan)
			}
		}
	}
}

// fillPlanTables gives the tables rows of many promotions and templates, and leaves them
// without statistics.
func fillPlanTables(t *testing.T, s database) {
	t.Helper()
	run(t, s,
		`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at)
SELECT i, '', 'POINT', 'RUNNING', 0, '', '', 5, false, false, now() FROM generate_series(1, 200) i`,
		`INSERT INTO summaries (promotion_id, summary_id) SELECT i, j FROM generate_series(1, 200) i, generate_series(0, 4) j`,
		`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, dispatch, attempts, state,
  maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT 1 + i % 2, i, 0, 1, now(), now(), 0, 0, 0, false, 'u' || i, '', '', '', '' FROM generate_series(1, 20000) i`,
		`INSERT INTO coupon_templates (id, name, total_quantity, per_user_limit, valid_for, mode, reissue, when_redis_away, draw_state, created_at)
SELECT i, '', 1000000, 1, 0, 'STREAM', false, 'DATABASE', '', now() FROM generate_series(1, 200) i`,
		`INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, slot, code, user_id)
SELECT i, 1 + i % 2, 0, i, i, now(), 1, 'c' || i, 'u' || i FROM generate_series(1, 10000) i`,
		`INSERT INTO audit (id, at, actor, role, action, subject, request_id, detail)
SELECT i, now(), 'a' || i % 9, 'admin', 'b' || i % 9, '/v1/promotions/' || i % 999, '', '{}' FROM generate_series(1, 5000) i`,
		`INSERT INTO idempotency_keys (key, id, first_at, begun_at, fingerprint)
SELECT sha256(i::text::bytea), i, now(), now(), sha256('') FROM generate_series(1, 5000) i`,
	)
}

// TestPlansOutliveASmallTable checks that a plan made with few rows is still
// good with a million: every row is reached by its whole key. PostgreSQL
// analyzes a table automatically only after about as many rows have changed.
func TestPlansOutliveASmallTable(t *testing.T) {
	t.Parallel()
	s := fresh(t, 2)
	conn := acquire(t, s)
	tables := []string{"promotions", "summaries", "payouts", "payout_users", "coupon_templates", "coupons", "coupon_rejections", "coupon_entrants"}
	all := strings.Join(tables, ", ")
	for _, analyzed := range []bool{false, true} { // no statistics are removed, so this order
		for _, rows := range []int{0, 100, 1000, 10_000} {
			if analyzed && (rows == 0 || rows == 10_000) {
				continue
			}
			run(t, s, `TRUNCATE `+all+` CASCADE`)
			fillBatchTables(t, s, rows)
			if analyzed {
				run(t, s, `ANALYZE `+all)
			}
			t.Run(fmt.Sprintf("%d rows, analyzed %t", rows, analyzed), func(t *testing.T) { reachRowsByKey(t, conn) })
		}
	}
	// To the planner, a table that was analyzed without rows stays empty as it fills.
	for _, table := range slices.Backward(tables) {
		run(t, s, `DELETE FROM `+table)
	}
	run(t, s, `ANALYZE `+all)
	fillBatchTables(t, s, 1000)
	t.Run("1000 rows, analyzed without rows", func(t *testing.T) { runSubqueriesByRow(t, conn) })
}

// fillBatchTables gives a promotion and a template that many rows in each table whose rows
// batches name.
func fillBatchTables(t *testing.T, s database, rows int) {
	t.Helper()
	n := strconv.Itoa(rows)
	run(t, s,
		`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at)
VALUES (1, '', 'POINT', 'RUNNING', 0, '', '', 5, false, false, now())`,
		`INSERT INTO summaries (promotion_id, summary_id) VALUES (1, 0)`,
		`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, dispatch, attempts, state,
  maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT 1, i, 0, 1, now(), now(), 0, 0, 0, false, 'u' || i, '', '', '', '' FROM generate_series(1, `+n+`) i`,
		`INSERT INTO coupon_templates (id, name, total_quantity, per_user_limit, valid_for, mode, reissue, when_redis_away, draw_state, created_at)
VALUES (1, '', 100, 1, 0, 'STREAM', false, 'DATABASE', '', now())`,
		`INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, slot, code, user_id)
SELECT i, 1, 0, i, i, now(), 1, 'c' || i, 'u' || i FROM generate_series(1, `+n+`) i`,
		`INSERT INTO coupon_rejections (template_id, ticket, generation, version, at, user_id, reason)
SELECT 1, i, 1, i, now(), 'u' || i, 'SOLD_OUT' FROM generate_series(1, `+n+`) i`,
		`INSERT INTO coupon_entrants (template_id, user_id) SELECT 1, 'u' || i FROM generate_series(1, `+n+`) i`,
	)
}

// runSubqueriesByRow requires plans that run no subquery to compare a row of a table with
// a row of a batch: that takes minutes for a thousand of each.
func runSubqueriesByRow(t *testing.T, conn *pgxpool.Conn) {
	t.Helper()
	paired := regexp.MustCompile(`Join Filter: .*(SubPlan \d+\) =|= \(SubPlan)`)
	for name, sql := range statements() {
		if plan := planOf(t, conn, name, sql); paired.MatchString(plan) {
			t.Errorf("%s runs a subquery for every row of a table and every row of the batch:\n%s", name, plan)
		}
	}
	for name, sql := range map[string]string{"insert": insertSQL, "heads": headsSQL, "rows": rowsSQL} {
		if plan := planOf(t, conn, name, sql); !strings.Contains(plan, "Index Cond: ((promotion_id = i.promotion_id) AND (target_id = i.target_id))") {
			t.Errorf("%s does not look payouts up by their key:\n%s", name, plan)
		}
	}
}

// reachRowsByKey requires plans that compare no row of a promotion or a template with
// every row of a batch.
func reachRowsByKey(t *testing.T, conn *pgxpool.Conn) {
	t.Helper()
	// Statements that name their rows must not use other indexes.
	named := []string{"queue named", "rewrite", "finish paid", "rows", "heads", "attempts"}
	// payouts_back has few rows, so reading all of it is cheap.
	joined := regexp.MustCompile(`Join Filter: .*\b(target_id|user_id|ticket|code)\b(.*\n){1,3}.*using (payout|coupon)`)
	back := regexp.MustCompile(`Join Filter: (.*\n){1,4}.*using payouts_back`)
	for name, sql := range statements() {
		plan := back.ReplaceAllString(planOf(t, conn, name, sql), "")
		if joined.MatchString(plan) {
			t.Errorf("%s compares every row of a promotion or a template with every row of the batch:\n%s", name, plan)
		}
		for _, index := range regexp.MustCompile(`using (payouts_\w+)`).FindAllStringSubmatch(plan, -1) {
			if slices.Contains(named, name) && index[1] != "payouts_pkey" && index[1] != "payouts_back" {
				t.Errorf("%s walks %s:\n%s", name, index[1], plan)
			}
		}
	}
}

// lists returns the statement of each list that has filters, with each of them.
func lists() map[string]string {
	all := map[string]string{
		"list": listSQL(nil, ""), "list a code": listSQL(nil, "A"),
	}
	maps.Copy(all, storetest.PromotionPages(dialect))
	maps.Copy(all, storetest.OtherPages(dialect))
	for s := range reward.StateCount {
		all["list "+s.String()], all["list "+s.String()+" with a code"] = listSQL(&s, ""), listSQL(&s, "A")
	}
	return all
}

// TestListsHaveIndexes checks that each filter of each list has an index in the
// order of the list, whatever the planner expects to find: in a table that was
// never analyzed, in a small one, and in one with almost only finished rows.
func TestListsHaveIndexes(t *testing.T) {
	t.Parallel()
	indexes := map[string]string{
		"list": "payouts_pkey", "list a code": "payouts_code", "list QUEUED": "payouts_open", "list promotions": "promotions_pkey",
		"list promotions in a status": "promotions_status", "list promotions of a creator": "promotions_creator",
		"search promotions":     "promotions_pkey",
		"list promotions by ID": "promotions_pkey", "list promotions by name": "promotions_name", "list promotions by name, down": "promotions_name",
		"list promotions by time": "promotions_created", "list promotions by time, down": "promotions_created",
		"list promotions of a time": "promotions_created",
		"audit":                     "audit_pkey", "audit of a subject": "audit_subject", "audit below": "audit_subject", "audit below by an actor": "audit_subject",
		"audit of an actor": "audit_actor", "audit of an action": "audit_action", "audit of an actor with an action": "audit_actor",
		"dead letters": "dead_letters_pkey", "dead letters with a status": "dead_letters_status",
		"dead letters of a source": "dead_letters_source", "dead letters of a source with a status": "dead_letters_source",
		"dead letters with a reason": "dead_letters_reason", "dead letters with a reason and a status": "dead_letters_reason",
		"dead letters of a source with a reason": "dead_letters_source_reason", "dead letters of a source with a reason and a status": "dead_letters_source_reason",
	}
	for s := range reward.StateCount {
		indexes["list "+s.String()+" with a code"] = "payouts_code"
		if s != reward.Queued {
			indexes["list "+s.String()] = "payouts_listed"
		}
	}
	for filter, index := range map[string]string{
		"": "coupons_ticket", ", ISSUED": "coupons_ticket", ", with a code": "coupons_code_of_template",
		", USED": "coupons_listed", ", CANCELLED": "coupons_listed", ", EXPIRED": "coupons_listed", ", HELD": "coupons_listed",
	} {
		indexes["coupons of a template"+filter], indexes["coupons of a template"+filter+", down"] = index, index
	}
	for name := range storetest.PromotionPages(dialect) {
		if first, next, _ := strings.Cut(name, ", next"); next != "" && indexes[first] != "" {
			indexes[name] = indexes[first]
		}
	}
	all := lists()
	maps.Copy(all, dialect.Statements())
	s := fresh(t, 2)
	conn := acquire(t, s)
	check := func(rows int, analyzed bool) {
		t.Helper()
		if analyzed {
			run(t, s, `ANALYZE promotions, summaries, payouts, dead_letters, audit, coupons`)
		}
		for name, index := range indexes {
			plan := planOf(t, conn, name, all[name])
			if !strings.Contains(plan, "using "+index+" ") || strings.Contains(plan, "Seq Scan") {
				t.Errorf("%d rows, analyzed %t: %s does without %s:\n%s", rows, analyzed, name, index, plan)
			}
		}
	}
	check(0, false)
	fillLists(t, s, listRows)
	check(listRows, false)
	check(listRows, true)
	t.Run("EveryListStartsAtOnce", func(t *testing.T) { listsStartAtOnce(t, s) })
	fillLists(t, s, 100)
	check(100, true)
}

// statements returns the main statements and the shared ones.
func statements() map[string]string {
	all := map[string]string{
		"insert": insertSQL, "queue due": queueDue, "queue named": queueNamed, "rewrite": rewriteSQL,
		"finish paid": finishPaidSQL, "rows": rowsSQL, "promotions": promotionsSQL, "heads": headsSQL,
		"claim due lookups": claimLookupsSQL, "attempts": attemptsSQL, "lock totals": lockTotals,
		"summaries":  addSummaries,
		"whole list": wholeSQL, "changes": changesSQL,
		"tell of issued coupons":    tellIssued,
		"active templates":          activeTemplates,
		"mark rounds without value": unvaluedSQL,
	}
	maps.Copy(all, lists())
	maps.Copy(all, dialect.Statements())
	return all
}

var parameter = regexp.MustCompile(`\$(\d+)`)

// planOf returns the plan that a prepared statement uses for every call.
func planOf(t *testing.T, conn *pgxpool.Conn, name, sql string) string {
	t.Helper()
	ctx := t.Context()
	// Prepare by name: only then is the plan reused for every call.
	if _, err := conn.Conn().PgConn().Exec(ctx, "PREPARE probe AS "+sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	most := 0
	for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
		var n int
		fixture.Must(fmt.Sscan(m[1], &n))(t)
		most = max(most, n)
	}
	nulls := ""
	if most > 0 {
		nulls = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", most), ", ") + ")"
	}
	res, err := conn.Conn().PgConn().Exec(ctx, "EXPLAIN EXECUTE probe"+nulls+"; DEALLOCATE probe").ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var plan strings.Builder
	for _, line := range res[0].Rows {
		plan.Write(line[0])
		plan.WriteByte('\n')
	}
	return plan.String()
}
