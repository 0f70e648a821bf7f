package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/storetest"
)

func TestMain(m *testing.M) { fixture.Main(m) }

func open(t testing.TB) *rows.Tables {
	t.Helper()
	s := storetest.OpenFile(t, filepath.Join(t.TempDir(), "a file? with # 100% odd name.db"), Open)
	t.Cleanup(s.Close)
	return s
}

// database is a store with its driver.
type database struct {
	*rows.Tables
	*Store
}

func openAt(t testing.TB, path string) database { return openObserved(t, path, nil) }

func openObserved(t testing.TB, path string, m *obs.Metrics) database {
	t.Helper()
	s := openEmpty(t, path, m)
	fixture.OK(t, s.Migrate(t.Context()))
	return s
}

// openEmpty opens a file, and does not migrate.
func openEmpty(t testing.TB, path string, m *obs.Metrics) database {
	t.Helper()
	s := fixture.Must(OpenWith(t.Context(), path, store.ViewerConnections, m))(t)
	t.Cleanup(s.Close)
	return database{s, s.Driver.(*Store)}
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Exercise(t, open)
}

func TestViewers(t *testing.T) {
	t.Parallel()
	storetest.ExerciseViewers(t, open, storetest.ViewerConnections{
		Hold: holdViewers,
		Endless: func(ctx context.Context, s *rows.Tables) error {
			_, err := collect(ctx, s.Driver.(*Store).reader.as("count"), scanInt, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n`)
			return err
		},
	})
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	m := obs.NewMetrics()
	s := openObserved(t, filepath.Join(t.TempDir(), "largesse.db"), m).Tables
	storetest.ExerciseMetrics(t, s, m, []string{obs.DatabaseWrite, obs.DatabaseWork, obs.DatabaseReads}, func() (func(), error) { return holdViewers(t.Context(), s) })
}

// holdViewers takes every connection for viewers.
func holdViewers(ctx context.Context, s *rows.Tables) (release func(), err error) {
	viewers := s.Driver.(*Store).reader.viewers
	var held []*sql.Conn
	for range viewers.Stats().MaxOpenConnections {
		conn, err := viewers.Conn(ctx)
		if err != nil {
			return nil, err
		}
		held = append(held, conn)
	}
	return sync.OnceFunc(func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	}), nil
}

// TestPlans checks that frequent statements do not read payouts that they do
// not need.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "largesse.db"))
	listed := func(state reward.State, code string) string { return listSQL(&state, code) }
	type check struct {
		query string
		want  []string // the steps that read a table, in order
	}
	checks := map[string]check{
		"dispatch": {dueTargets, []string{"SEARCH payouts USING COVERING INDEX payouts_open (promotion_id=? AND state=? AND due_at<?)"}},
		"list":     {listSQL(nil, ""), []string{"SEARCH p USING PRIMARY KEY (promotion_id=? AND target_id>?)"}},
	}
	for name, step := range map[string]string{
		"list promotions": "INTEGER PRIMARY KEY (rowid<?)", "list promotions by ID": "INTEGER PRIMARY KEY (rowid>?)", "search promotions": "INTEGER PRIMARY KEY (rowid<?)",
		"list promotions in a status": "INDEX promotions_status (status=? AND rowid<?)", "list promotions of a creator": "INDEX promotions_creator (created_by=? AND id<?)",
		"list promotions of a time": "INDEX promotions_created (created_at>? AND created_at<?)",
	} {
		checks[name] = check{storetest.PromotionPages(dialect)[name], []string{"SEARCH m USING " + step, "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)"}}
	}
	for name, index := range map[string]string{"list promotions by name": "promotions_name", "list promotions by time, down": "promotions_created"} {
		pages := storetest.PromotionPages(dialect)
		counts := "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)"
		checks[name] = check{pages[name], []string{"SCAN m USING INDEX " + index, counts}}
		compared := map[string]string{"promotions_name": "(name>?)", "promotions_created": "(created_at<?)"}[index]
		checks[name+", next"] = check{pages[name+", next page"], []string{"SEARCH m USING INDEX " + index + " " + compared, counts}}
	}
	for state, index := range map[reward.State]string{
		reward.Ready: "payouts_settled", reward.Retrying: "payouts_rare", reward.Unknown: "payouts_rare",
		reward.Succeeded: "payouts_settled", reward.Failed: "payouts_rare", reward.Cancelled: "payouts_settled",
	} {
		checks["list "+state.String()] = check{listed(state, ""), []string{"SEARCH p USING INDEX " + index + " (promotion_id=? AND state=? AND target_id>?)"}}
	}
	byKey := "SEARCH p USING PRIMARY KEY (promotion_id=? AND target_id=?)"
	checks["list QUEUED"] = check{
		listed(reward.Queued, ""), []string{"SEARCH p USING COVERING INDEX payouts_open (promotion_id=? AND state=?)", "SCAN i", byKey},
	}
	ofCode := " payouts_code (promotion_id=? AND error_code=? AND state=? AND target_id>?)"
	for state := range reward.StateCount {
		checks["list "+state.String()+" with a code"] = check{listed(state, "A"), []string{"SEARCH p USING INDEX" + ofCode}}
	}
	checks["list a code"] = check{
		listSQL(nil, "A"), append(slices.Repeat([]string{"SEARCH p USING COVERING INDEX" + ofCode}, int(reward.StateCount)), "SCAN i", byKey),
	}
	// A list without a status merges the pages of three.
	merged := func(index string) []string {
		return append(slices.Repeat([]string{"SEARCH dead_letters USING COVERING INDEX " + index, "SCAN s"}, 3), "SCAN page",
			"SEARCH dead_letters USING INTEGER PRIMARY KEY (rowid=?)")
	}
	ofStatus := []string{"SEARCH c USING INDEX coupons_listed (template_id=? AND status=? AND (ticket,generation):(?,?))"}
	const inState = "SEARCH p USING COVERING INDEX payouts_code (promotion_id=? AND error_code=? AND state=?)"
	shared := dialect.Statements()
	maps.Copy(shared, storetest.OtherPages(dialect))
	for name, want := range map[string][]string{
		"counts within bounds":  {"SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)"},
		"promotions as read":    {"SCAN CONSTANT ROW", "SCAN e VIRTUAL TABLE INDEX 1:", "SEARCH m USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN"},
		"pick first payouts":    {"SEARCH p USING INDEX payouts_open (promotion_id=? AND state=?)"},
		"pick approved payouts": {"SEARCH p USING INDEX payouts_open (promotion_id=? AND state=? AND due_at<?)", "SEARCH m USING INTEGER PRIMARY KEY (rowid=?)"},
		"pick returned payouts": {"SEARCH p USING INDEX payouts_rare (promotion_id=? AND state=?)"},
		"pick retries":          {"SEARCH p USING INDEX payouts_open (promotion_id=? AND state=? AND due_at<?)"},
		"find an API key":       {"SEARCH api_keys USING INDEX api_keys_hash (hash=?)"},
		"list API keys":         {"SEARCH api_keys USING INTEGER PRIMARY KEY (rowid<?)"},
		"use an API key":        {"SEARCH api_keys USING INTEGER PRIMARY KEY (rowid=?)"},
		"audit":                 {"SEARCH audit USING INTEGER PRIMARY KEY (rowid<?)"},
		"audit of a subject":    {"SEARCH audit USING INDEX audit_subject (subject=? AND rowid<?)"},
		"audit below": {
			"SEARCH audit USING COVERING INDEX audit_subject (subject>? AND subject<?)", "SCAN below", "SCAN page",
			"SEARCH audit USING INTEGER PRIMARY KEY (rowid=?)",
		},
		"audit below by an actor": {
			"SEARCH audit USING INDEX audit_subject (subject>? AND subject<?)", "SCAN below", "SCAN page",
			"SEARCH audit USING INTEGER PRIMARY KEY (rowid=?)",
		},
		"audit of an actor with an action": {"SEARCH audit USING INDEX audit_actor (actor=? AND rowid<?)"},
		"audit of an actor":                {"SEARCH audit USING INDEX audit_actor (actor=? AND rowid<?)"},
		"audit of an action":               {"SEARCH audit USING INDEX audit_action (action=? AND rowid<?)"},
		"end an audit line":                {"SEARCH audit USING INTEGER PRIMARY KEY (rowid=?)"},
		"drop an audit line":               {"SEARCH audit USING INTEGER PRIMARY KEY (rowid=?)"},
		"forget audit lines":               {"SEARCH audit USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH audit USING INTEGER PRIMARY KEY (rowid>?)"},
		"forget dead letters": {
			"SEARCH dead_letters USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH dead_letters USING COVERING INDEX dead_letters_status (status=?)",
		},
		"claim a key": nil, // an INSERT reads nothing
		"read a key":  {"SEARCH idempotency_keys USING INDEX sqlite_autoindex_idempotency_keys_1 (key=?)"},
		"delete expired keys": {
			"SEARCH idempotency_keys USING COVERING INDEX sqlite_autoindex_idempotency_keys_1 (key=?)",
			"SEARCH idempotency_keys USING INDEX idempotency_keys_first (first_at<?)", "SCAN old",
		},
		"finish a key":  {"SEARCH idempotency_keys USING INDEX sqlite_autoindex_idempotency_keys_1 (key=?)"},
		"drop a key":    {"SEARCH idempotency_keys USING INDEX sqlite_autoindex_idempotency_keys_1 (key=?)"},
		"release a key": {"SEARCH idempotency_keys USING INDEX sqlite_autoindex_idempotency_keys_1 (key=?)"},
		"claim webhook deliveries": { // the index has only open deliveries
			"SEARCH webhooks USING INTEGER PRIMARY KEY (rowid=?)", "SCAN webhooks USING INDEX webhooks_open", "SCAN due",
		},
		"dead letters":                            {"SEARCH dead_letters USING INTEGER PRIMARY KEY (rowid<?)"},
		"dead letters with a status":              {"SEARCH dead_letters USING INDEX dead_letters_status (status=? AND rowid<?)"},
		"dead letters of a source":                merged("dead_letters_source (source=? AND status=? AND rowid<?)"),
		"dead letters of a source with a status":  {"SEARCH dead_letters USING INDEX dead_letters_source (source=? AND status=? AND rowid<?)"},
		"dead letters with a reason":              merged("dead_letters_reason (reason=? AND status=? AND rowid<?)"),
		"dead letters with a reason and a status": {"SEARCH dead_letters USING INDEX dead_letters_reason (reason=? AND status=? AND rowid<?)"},
		"dead letters of a source with a reason":  merged("dead_letters_source_reason (source=? AND reason=? AND status=? AND rowid<?)"),
		"dead letters of a source with a reason and a status": {
			"SEARCH dead_letters USING INDEX dead_letters_source_reason (source=? AND reason=? AND status=? AND rowid<?)",
		},
		"close a dead letter": {"SEARCH dead_letters USING INTEGER PRIMARY KEY (rowid=?)"},
		"assign a template":   {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"list entrants":       {"SEARCH coupon_entrants USING PRIMARY KEY (template_id=? AND user_id>?)"},
		"draws of a user": {
			"SEARCH e USING COVERING INDEX coupon_entrants_user (user_id=?)", "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)",
		},
		"list uploads": {"SEARCH uploads USING INDEX uploads_listed (promotion_id=? AND id<?)"},
		"list authors": {"SEARCH promotion_authors USING PRIMARY KEY (promotion_id=?)"},
		"a promotion":  {"SEARCH m USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)"},
		"promotions of records": {
			"SEARCH m USING INTEGER PRIMARY KEY (rowid=?)", "SCAN json_each VIRTUAL TABLE INDEX 1:",
			"SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)", "SEARCH a USING PRIMARY KEY (promotion_id=?)",
		},
		"write a promotion": {"SEARCH promotions USING INTEGER PRIMARY KEY (rowid=?)"},
		"lock counts":       {"SEARCH summaries USING PRIMARY KEY (promotion_id=? AND summary_id=?)"},
		"claim lookups": {
			"SEARCH p USING PRIMARY KEY (promotion_id=? AND target_id=?)",
			"SEARCH payouts USING INDEX payouts_lookups (due_at<?)",
		},
		"a payout":                   {"SEARCH p USING PRIMARY KEY (promotion_id=? AND target_id=?)"},
		"attempts of a payout":       {"SEARCH attempts USING PRIMARY KEY (promotion_id=? AND target_id=?)"},
		"payouts of a user":          {"SEARCH u USING INDEX payouts_user (user_id=?)", "SCAN p"},
		"promotions that paid users": {"SCAN l VIRTUAL TABLE INDEX 1:", "SEARCH u USING INDEX payouts_user (user_id=?)", "SCAN p", "SCAN paid"},
		"answers of a user": {
			"SEARCH u USING INDEX payouts_user (user_id=?)", "SCAN p", "SEARCH a USING PRIMARY KEY (promotion_id=? AND target_id=?)", "SCAN r",
		},
		"correct counts": {
			"SEARCH summaries USING PRIMARY KEY (promotion_id=? AND summary_id=?)", "SEARCH f USING PRIMARY KEY (promotion_id=? AND summary_id=?)",
		},
		"count a repair": {"SEARCH summaries USING PRIMARY KEY (promotion_id=? AND summary_id=?)"},
		"continue an ended promotion": {
			"SEARCH promotions USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)",
		},
		"counts within limits": {"SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)", "SEARCH p USING INDEX payouts_rare (promotion_id=? AND state=?)"},
		"flagged amount":       {"SEARCH p USING INDEX payouts_rare (promotion_id=? AND state=?)"},
		"counts of a canary":   {"SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)"},
		"counts of an end":     {"SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)"},
		"an open upload":       {"SEARCH uploads USING INDEX uploads_listed (promotion_id=?)"},
		"undecided payouts":    {"SEARCH p USING INDEX payouts_open (promotion_id=? AND state=?)"},
		"worth of a promotion": {"SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)"},
		"approve all": {
			"SEARCH promotions USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)",
			"SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)", "SEARCH p USING COVERING INDEX payouts_open (promotion_id=? AND state=?)",
		},
		"approved payouts left": {
			"SEARCH m USING INTEGER PRIMARY KEY (rowid=?)",
			"SEARCH p USING INDEX payouts_open (promotion_id=? AND state=? AND due_at<?)",
			"SEARCH p USING INDEX payouts_rare (promotion_id=? AND state=?)",
			"SEARCH p USING INDEX payouts_open (promotion_id=? AND state=?)",
		},
		"tell endpoints": {"SCAN CONSTANT ROW", "SCAN e", "SCAN now", "SEARCH webhook_attempts USING PRIMARY KEY (delivery_id=?)"},
		"promotions to ask for": {
			"SEARCH m USING INDEX promotions_due (starts_at>?)", "SEARCH u USING INDEX uploads_listed (promotion_id=?)", "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)",
		},
		"due promotions": {
			"SEARCH m USING INDEX promotions_due (starts_at<?)", "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)",
		},
		"views": {
			"SEARCH m USING INTEGER PRIMARY KEY (rowid=?)", "SCAN json_each VIRTUAL TABLE INDEX 1:",
			"SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)",
		},
		"active promotions": {"SCAN m USING INDEX promotions_active", "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)"},
		"grant a promotion its worth": {
			"SEARCH m USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)",
			"SEARCH a USING PRIMARY KEY (promotion_id=?)", "SEARCH o USING INDEX promotions_granted (day_granted_at>?)",
			"SEARCH a USING PRIMARY KEY (promotion_id=?)", "SEARCH b USING PRIMARY KEY (promotion_id=?)", "SCAN q", "SCAN g",
			"SEARCH m USING INTEGER PRIMARY KEY (rowid=?)",
		},
		"read a grant":   {"SEARCH m USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)"},
		"list refusals":  {"SEARCH coupon_refusals USING PRIMARY KEY (template_id=?)"},
		"slots of users": {"SCAN u VIRTUAL TABLE INDEX 1:", "SEARCH c USING COVERING INDEX coupons_slot (template_id=? AND user_id=? AND slot>?)"},
		"latest coupons of users": {
			"SCAN u VIRTUAL TABLE INDEX 1:", "SEARCH c USING INDEX coupons_slot (template_id=? AND user_id=? AND slot>?)",
			"SCAN latest", "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
		},
		"settled requests": {
			"SCAN e VIRTUAL TABLE INDEX 1:", "SEARCH c USING COVERING INDEX coupons_ticket (template_id=? AND ticket=? AND generation=?)",
			"SEARCH c USING INDEX coupons_slot (template_id=? AND user_id=?)", "SEARCH j USING PRIMARY KEY (template_id=? AND ticket=? AND generation=?)",
		},
		"same requests": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN e VIRTUAL TABLE INDEX 1:",
			"SEARCH c USING COVERING INDEX coupons_slot (template_id=? AND user_id=? AND slot>?)",
			"SEARCH c USING COVERING INDEX coupons_ticket (template_id=? AND ticket>?)",
			"SEARCH c USING COVERING INDEX coupons_ticket (template_id=? AND ticket=? AND generation=?)",
			"SEARCH j USING PRIMARY KEY (template_id=? AND ticket>?)",
			"SEARCH j USING PRIMARY KEY (template_id=? AND ticket=? AND generation=?)", "SEARCH c USING INDEX coupons_slot (template_id=? AND user_id=?)",
		},
		"settle a template": {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"insert coupons": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN e VIRTUAL TABLE INDEX 1:",
			"SEARCH i USING COVERING INDEX coupon_code_imports_first (template_id=? AND first_number<?)",
			"SEARCH k USING PRIMARY KEY (import_id=? AND line=?)",
		},
		"insert rejections": {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN e VIRTUAL TABLE INDEX 1:"},
		"latest outcomes": {
			"SCAN u VIRTUAL TABLE INDEX 1:", "SEARCH l USING INDEX coupons_slot (template_id=? AND user_id=?)",
			"SEARCH l USING COVERING INDEX coupon_rejections_user (user_id=? AND template_id=?)",
			"SEARCH l USING COVERING INDEX coupon_rejections_user (user_id=? AND template_id=?)",
			"SCAN latest", "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
			"SCAN latest", "SEARCH r USING PRIMARY KEY (template_id=? AND ticket=? AND generation=?)",
		},
		"history of a user": {
			"SEARCH c USING INDEX coupons_user (user_id=?)", "SCAN c", "SEARCH r USING INDEX coupon_rejections_user (user_id=?)", "SCAN r",
		},
		"expired holds": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN u VIRTUAL TABLE INDEX 1:",
			"SEARCH c USING INDEX coupons_slot (template_id=? AND user_id=?)", "SEARCH c USING INDEX coupons_slot (template_id=? AND user_id=?)",
		},
		"settled tickets": {
			"SEARCH c USING INDEX coupons_version (template_id=? AND version>?)", "SCAN c",
			"SEARCH r USING INDEX coupon_rejections_version (template_id=? AND version>?)", "SCAN r",
		},
		"changed holdings": {
			"SEARCH c USING INDEX coupons_version (template_id=? AND version>?)", "SCAN changed", "SCAN changed", "SCAN u",
			"SEARCH c USING COVERING INDEX coupons_slot (template_id=? AND user_id=? AND slot>?)",
			"SEARCH c USING INDEX coupons_slot (template_id=? AND user_id=? AND slot>?)",
		},
		"holders": {"SEARCH c USING INDEX coupons_slot (template_id=?)"},
		"waiting line": {
			"SCAN e VIRTUAL TABLE INDEX 1:", "SEARCH c USING INDEX coupons_ticket (template_id=? AND ticket=? AND generation<?)",
			"SEARCH r USING INDEX coupon_rejections_user (user_id=? AND template_id=? AND ticket=? AND generation<?)",
			"SEARCH c USING INDEX coupons_slot (template_id=? AND user_id=?)",
			"SEARCH r USING COVERING INDEX coupon_rejections_user (user_id=? AND template_id=?)",
		},
		"expire coupons": {
			"SEARCH coupons USING INTEGER PRIMARY KEY (rowid=?)",
			"SEARCH coupons USING COVERING INDEX coupons_expiry (expires_at>? AND expires_at<?)", "SCAN due",
		},
		"find ended holds": {
			"SEARCH coupons USING COVERING INDEX coupons_held (template_id>?)", "SCAN h",
			"SEARCH c USING COVERING INDEX coupons_held (template_id>?)", "SCAN h",
			"SEARCH c EXISTS USING COVERING INDEX coupons_held (template_id=? AND held_until<?)", "SCAN CONSTANT ROW",
		},
		"count coupons": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)",
			"SEARCH c USING COVERING INDEX coupons_listed (template_id=? AND status=?)", "SCAN counted",
			"SEARCH c USING COVERING INDEX coupons_listed (template_id=? AND status=?)", "SCAN counted",
			"SEARCH c USING COVERING INDEX coupons_listed (template_id=? AND status=?)", "SCAN counted",
			"SEARCH c USING INDEX coupons_listed (template_id=? AND status=?)", "SCAN counted",
		},
		"count rejections":            {"SEARCH j USING PRIMARY KEY (template_id=?)", "SCAN r"},
		"count who cancelled coupons": {"SEARCH c USING INDEX coupons_listed (template_id=? AND status=?)", "SCAN n"},
		"amount of an error code":     {"SEARCH p USING INDEX payouts_code (promotion_id=? AND error_code=? AND state=?)", "SCAN a"},
		"a coupon":                    {"SEARCH c USING INTEGER PRIMARY KEY (rowid=?)"},
		"coupons by code":             {"SEARCH c USING INDEX coupons_code (code=?)"},
		"coupons of a user":           {"SEARCH c USING INDEX coupons_user (user_id=? AND id<?)"},
		"use a coupon":                {"SEARCH coupons USING INTEGER PRIMARY KEY (rowid=?)"},
		"confirm a coupon":            {"SEARCH coupons USING INTEGER PRIMARY KEY (rowid=?)"},
		"coupons to cancel":           {"SCAN e VIRTUAL TABLE INDEX 1:", "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)"},
		"cancel coupons": {
			"SCAN e VIRTUAL TABLE INDEX 1:", "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN d", "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
		},
		"count cancelled coupons": {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH c USING COVERING INDEX coupons_version (template_id=? AND version=?)"},
		"end holds": {
			"SEARCH coupons USING COVERING INDEX coupons_held (template_id=? AND held_until<?)", "SCAN CONSTANT ROW",
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN d", "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)",
		},
		"return codes": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH c USING INDEX coupons_version (template_id=? AND version=?)",
			"SEARCH i USING COVERING INDEX coupon_code_imports_first (template_id=? AND first_number>?)",
			"SEARCH k USING COVERING INDEX coupon_codes_code (import_id=? AND code=?)", "SCAN f", "SEARCH l USING INTEGER PRIMARY KEY (rowid=?)",
			"SEARCH i USING COVERING INDEX coupon_code_imports_first (template_id=? AND first_number>?)", "SCAN m",
			"SEARCH k USING PRIMARY KEY (import_id=? AND line=?)",
		},
		"forget the codes of coupons": {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH c USING INDEX coupons_version (template_id=? AND version=?)"},
		"free places": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH c USING COVERING INDEX coupons_version (template_id=? AND version=?)",
			"SEARCH i USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH i USING COVERING INDEX coupon_code_imports_first (template_id=? AND first_number>?)",
			"SEARCH k USING PRIMARY KEY (import_id=? AND line>?)", "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN n",
		},
		"lengthen an import": {
			"SEARCH i USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH i USING COVERING INDEX coupon_code_imports_first (template_id=? AND first_number>?)",
			"SEARCH k USING PRIMARY KEY (import_id=? AND line>?)", "SEARCH k USING PRIMARY KEY (import_id=? AND line>?)",
		},
		"changed holders": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH c USING INDEX coupons_version (template_id=? AND version=?)", "SCAN changed", "SCAN u",
			"SEARCH c USING COVERING INDEX coupons_slot (template_id=? AND user_id=? AND slot>?)",
			"SEARCH c USING INDEX coupons_slot (template_id=? AND user_id=? AND slot>?)",
		},
		"a line": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH c USING COVERING INDEX coupons_ticket (template_id=? AND ticket=? AND generation=?)",
			"SEARCH r USING PRIMARY KEY (template_id=? AND ticket=? AND generation=?)",
		},
		"store a leave": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH c USING COVERING INDEX coupons_ticket (template_id=? AND ticket=? AND generation=?)",
			"SEARCH r USING PRIMARY KEY (template_id=? AND ticket=? AND generation=?)",
		},
		"count a leave":  {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"draw now":       {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"},
		"save entrants":  {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN u VIRTUAL TABLE INDEX 1:"},
		"has entrants":   {"SCAN u VIRTUAL TABLE INDEX 1:", "SEARCH e USING PRIMARY KEY (template_id=? AND user_id=?)"},
		"latest refusal": {"SEARCH r USING PRIMARY KEY (template_id=?)", "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN r LEFT-JOIN"},
		"end a refusal":  {"SEARCH coupon_refusals USING PRIMARY KEY (template_id=? AND number=?)", "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"},
		"tell that a template is sold out": {
			"SCAN CONSTANT ROW", "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SCAN e", "SCAN now", "SEARCH webhook_attempts USING PRIMARY KEY (delivery_id=?)",
		},
		"count what is sold out": {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"},
		"begin a refusal":        {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH r USING PRIMARY KEY (template_id=? AND number>?)"},
		"find a taken code": {
			"SCAN CONSTANT ROW", "SEARCH p USING COVERING INDEX coupon_code_imports_first (template_id=? AND first_number>?)", "SCAN l VIRTUAL TABLE INDEX 1:",
			"SCAN p", "SEARCH k USING COVERING INDEX coupon_codes_code (import_id=? AND code=?)", "SEARCH i USING INTEGER PRIMARY KEY (rowid=?)",
			"SCAN f LEFT-JOIN",
		},
		"lock an import":                 {"SEARCH i USING INTEGER PRIMARY KEY (rowid=?)"},
		"stage codes":                    {"SEARCH i USING INTEGER PRIMARY KEY (rowid=?)", "SCAN l VIRTUAL TABLE INDEX 1:"},
		"count staged codes":             {"SEARCH i USING INTEGER PRIMARY KEY (rowid=?)"},
		"read for an import":             {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH i USING INTEGER PRIMARY KEY (rowid=?)"},
		"publish an import":              {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH i USING INTEGER PRIMARY KEY (rowid=?)"},
		"count published codes":          {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"list UNKNOWN payouts":           {"SEARCH p USING INDEX payouts_unknown_since ((updated_at,promotion_id,target_id)>(?,?,?) AND updated_at<?)", "SCAN CONSTANT ROW"},
		"list UNKNOWN payouts of a user": {"SEARCH u USING INDEX payouts_user (user_id=?)", "SCAN p", "SCAN CONSTANT ROW"},
		"read a page of old codes": {
			"SEARCH k USING PRIMARY KEY (import_id=? AND line>?)",
			"SEARCH i USING COVERING INDEX coupon_code_imports_first (template_id=?)", "SEARCH c EXISTS USING PRIMARY KEY (import_id=? AND line>?)",
			"SEARCH i USING COVERING INDEX coupon_code_imports_first (template_id=?)", "SEARCH c EXISTS USING PRIMARY KEY (import_id=? AND line>?)",
		},
		"remove old codes": {
			"SEARCH coupon_codes USING PRIMARY KEY (import_id=? AND line>? AND line<?)", "SEARCH i USING INTEGER PRIMARY KEY (rowid=?)",
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)",
		},
		"find payouts to sweep":      {"SEARCH p USING COVERING INDEX payouts_open (promotion_id=? AND state=? AND due_at<?)"},
		"find payouts to cancel":     {"SEARCH p USING COVERING INDEX payouts_open (promotion_id=? AND state=? AND (due_at,target_id)>(?,?))"},
		"a template":                 {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"},
		"lock the row of a template": {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"},
		"touch a template":           {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"raise a generation":         {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"move places":                {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"change settings":            {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"change settings of an unused template": {
			"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH e USING PRIMARY KEY (template_id=?)",
		},
		"has an entrant":     {"SEARCH coupon_entrants USING PRIMARY KEY (template_id=?)"},
		"set a floor":        {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"close a draw":       {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"end a draw":         {"SEARCH coupon_templates USING INTEGER PRIMARY KEY (rowid=?)"},
		"requests that left": {"SEARCH r USING PRIMARY KEY (template_id=? AND (ticket,generation)>(?,?))"},
		"find the oldest payouts": {
			"SEARCH m USING INDEX promotions_status (status=?)", "SEARCH s USING PRIMARY KEY (promotion_id=? AND summary_id=?)",
			"SEARCH p USING COVERING INDEX payouts_open (promotion_id=? AND state=?)", "SCAN r", "SEARCH p USING COVERING INDEX payouts_unknown_since (updated_at>?)",
		},
		"count error codes": slices.Concat([]string{
			"SCAN CONSTANT ROW", "SEARCH p USING COVERING INDEX payouts_code (promotion_id=?)", "SCAN c",
			"SEARCH p USING COVERING INDEX payouts_code (promotion_id=? AND error_code>?)", "SCAN c",
		}, slices.Repeat([]string{inState, "SCAN counted"}, 3), slices.Repeat([]string{inState}, 3)),
		"example of an error code": {
			"SEARCH p USING PRIMARY KEY (promotion_id=? AND target_id=?)", "SEARCH a USING PRIMARY KEY (promotion_id=? AND target_id=?)",
		},
		"list reconciliations": {"SEARCH reconciliations USING INTEGER PRIMARY KEY (rowid<?)"},
		"find due endpoints": {
			"SCAN e", "SEARCH d EXISTS USING COVERING INDEX webhook_deliveries_due (endpoint_id=? AND due_at<?)", "SCAN CONSTANT ROW",
		},
		"claim deliveries": {
			"SEARCH webhook_deliveries USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH webhook_deliveries USING COVERING INDEX webhook_deliveries_due (endpoint_id=? AND due_at<?)",
			"SCAN CONSTANT ROW", "SCAN due",
		},
		"list deliveries": {
			"SEARCH webhook_deliveries USING INDEX webhook_deliveries_listed (endpoint_id=? AND state=? AND id<?)",
			"SEARCH webhook_deliveries USING INDEX webhook_deliveries_listed (endpoint_id=? AND state=? AND id<?)",
			"SEARCH webhook_deliveries USING INDEX webhook_deliveries_listed (endpoint_id=? AND state=? AND id<?)", "SCAN p",
			"SEARCH a USING PRIMARY KEY (delivery_id=?) LEFT-JOIN",
		},
		"list deliveries with a state": {
			"SEARCH webhook_deliveries USING INDEX webhook_deliveries_listed (endpoint_id=? AND state=? AND id<?)", "SCAN p",
			"SEARCH a USING PRIMARY KEY (delivery_id=?) LEFT-JOIN",
		},
		"count pending deliveries": {
			"SEARCH webhook_deliveries USING COVERING INDEX webhook_deliveries_listed (endpoint_id=? AND state=?)", "SCAN n",
		},
		"find bulk events to drop": {
			"SEARCH webhook_deliveries USING INDEX webhook_deliveries_listed (endpoint_id=? AND state=?)", "SEARCH n",
		},
		"delete old deliveries": {
			"SEARCH webhook_deliveries USING INTEGER PRIMARY KEY (rowid=?)",
			"SEARCH webhook_deliveries USING COVERING INDEX webhook_deliveries_done (endpoint_id=? AND done_at>? AND done_at<?)", "SCAN CONSTANT ROW",
			"SEARCH webhook_attempts USING PRIMARY KEY (delivery_id=?)",
		},
		"abandon old deliveries": {
			"SEARCH webhook_deliveries USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH webhook_deliveries USING INDEX webhook_deliveries_listed (endpoint_id=? AND state=?)", "SCAN n",
		},
		"delete deliveries of nobody": {
			"SEARCH webhook_deliveries USING INTEGER PRIMARY KEY (rowid=?)",
			"SEARCH webhook_deliveries USING COVERING INDEX webhook_deliveries_listed (endpoint_id=?)", "SEARCH e USING INTEGER PRIMARY KEY (rowid=?)",
			"SEARCH webhook_attempts USING PRIMARY KEY (delivery_id=?)",
		},
		"mark points of promotions": {
			"SEARCH promotion_points USING PRIMARY KEY (promotion_id=? AND at=? AND step=? AND instance=?)",
			"SEARCH promotion_points USING COVERING INDEX promotion_points_step (step=? AND at<?)",
		},
		"mark points of templates": {
			"SEARCH template_points USING PRIMARY KEY (template_id=? AND at=? AND step=? AND instance=?)",
			"SEARCH template_points USING COVERING INDEX template_points_step (step=? AND at<?)",
		},
		"fold points of promotions":          {"SEARCH promotion_points USING INDEX promotion_points_step (step=?)"},
		"delete folded points of promotions": {"SEARCH promotion_points USING INDEX promotion_points_step (step=?)"},
		"timeline of a promotion":            {"SEARCH promotion_points USING PRIMARY KEY (promotion_id=? AND at>? AND at<?)"},
		"timeline of a template":             {"SEARCH template_points USING PRIMARY KEY (template_id=? AND at>? AND at<?)"},
		"recount coupons": {
			"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH c USING INDEX coupons_version (template_id=?) LEFT-JOIN",
		},
	} {
		checks[name] = check{shared[name], want}
		delete(shared, name)
	}
	for filter, want := range map[string][]string{
		"":              {"SEARCH c USING INDEX coupons_ticket (template_id=? AND (ticket,generation):(?,?))"},
		", of a user":   {"SEARCH coupons USING INDEX coupons_slot (template_id=? AND user_id=?)", "SCAN c"},
		", with a code": {"SEARCH coupons USING INDEX coupons_code (code=? AND template_id=?)", "SCAN c"},
		", ISSUED":      {"SEARCH c USING INDEX coupons_ticket (template_id=? AND (ticket,generation):(?,?))"},
		", USED":        ofStatus, ", CANCELLED": ofStatus, ", EXPIRED": ofStatus, ", HELD": ofStatus,
	} {
		for order, compared := range map[string]string{"": ">", ", down": "<"} {
			name, steps := "coupons of a template"+filter+order, slices.Clone(want)
			steps[0] = strings.Replace(steps[0], ":", compared, 1)
			checks[name] = check{shared[name], steps}
			delete(shared, name)
		}
	}
	for name, sql := range shared {
		t.Errorf("%s: no plan is expected of %s", name, sql)
	}
	for name, test := range checks {
		plan, err := collect(t.Context(), s.reader.as("test"), func(found *sql.Rows) (string, error) {
			var id, parent, unused int
			var detail string
			err := found.Scan(&id, &parent, &unused, &detail)
			return detail, err
		}, `EXPLAIN QUERY PLAN `+test.query, slices.Repeat([]any{1}, 99)...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		reads := slices.DeleteFunc(plan, func(step string) bool {
			return strings.HasPrefix(step, "SCAN (subquery") || !strings.HasPrefix(step, "SCAN ") && !strings.HasPrefix(step, "SEARCH ")
		})
		if !slices.Equal(reads, test.want) {
			t.Errorf("%s: the plan reads %q, want %q", name, reads, test.want)
		}
	}
}

// TestApprovedBeforeTheMigration checks what becomes of approvals of an older schema.
func TestApprovedBeforeTheMigration(t *testing.T) {
	t.Parallel()
	s := openEmpty(t, filepath.Join(t.TempDir(), "largesse.db"), nil)
	p := fixture.Must(s.migrations())(t)
	fixture.Must(p.UpTo(t.Context(), storetest.ApprovedBefore))(t)
	storetest.ExerciseApprovedBefore(t, s.Tables, func(second int) string { return strconv.Itoa(second * 1_000_000) }, func(sql string) error {
		_, err := s.writer.ExecContext(t.Context(), sql)
		return err
	})
}

// TestMigrate checks that rows of an older schema survive a migration up and
// down.
func TestMigrate(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openEmpty(t, filepath.Join(t.TempDir(), "largesse.db"), nil)
	p := fixture.Must(s.migrations())(t)
	fixture.Must(p.UpTo(ctx, 1))(t)
	for _, query := range []string{
		`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, created_at, stream_gone)
VALUES (1, 'old', 'POINT', 'RUNNING', 5, '', 'KRW', 3, 0, 0, 0)`,
		`INSERT INTO summaries (promotion_id, summary_id, queued, queued_amount) VALUES (1, 0, 1, 5)`,
		`INSERT INTO payouts (promotion_id, target_id, summary_id, user_id, amount, voucher_code, state, dispatch, attempts,
  maybe_called, due_at, first_dispatched_at, transaction_key, error_code, error_message, updated_at)
VALUES (1, 7, 0, 'u', 5, '', 1, 1, 0, 0, 0, 0, '', '', '', 0)`,
	} {
		fixture.Must(s.writer.ExecContext(ctx, query))(t)
	}
	for range 2 {
		fixture.OK(t, s.Migrate(ctx))
		storetest.AfterMigration(t, s.Tables)
		fixture.Must(p.DownTo(ctx, 1))(t)
	}
	var rows int
	if err := s.reader.QueryRowContext(ctx, `SELECT count(*) FROM payouts WHERE target_id = 7`).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("after the way down there are %d rows, %v", rows, err)
	}
}

// TestRules compares the driver with the rules, case by case.
// TestMeanwhile changes promotions between the read of a rule and its write.
func TestMeanwhile(t *testing.T) {
	t.Parallel()
	storetest.ExerciseMeanwhile(t, open, func(s *rows.Tables, wrap func(rows.DB) rows.DB) *rows.Tables {
		return rows.New(wrap(&tables{s: s.Driver.(*Store), prepared: make(map[string]*sql.Stmt)}), s.Driver.(*Store), dialect)
	})
}

func TestRules(t *testing.T) { followsTheRules(t, 5) }

// followsTheRules tries one of share cases.
func followsTheRules(t *testing.T, share int) {
	t.Helper()
	t.Parallel()
	storetest.ExerciseRules(t, share, open, rawTables(t))
}

// TestRows reads and changes rows as no method of the store can.
func TestRows(t *testing.T) {
	t.Parallel()
	storetest.ExerciseRows(t, open, rawTables(t))
}

// rawTables reads and writes the tables of a store.
func rawTables(t *testing.T) func(*rows.Tables) storetest.Raw {
	t.Helper()
	return func(s *rows.Tables) storetest.Raw {
		writer := s.Driver.(*Store).writer
		return storetest.Raw{
			Exec: func(sql string) error {
				_, err := writer.ExecContext(t.Context(), sql)
				return err
			},
			Query: func(query string) ([][]string, error) {
				return collect(t.Context(), writer, scanTexts, query)
			},
			Moment: func(t time.Time) string { return strconv.FormatInt(micros(t), 10) },
			Micros: func(column string) string { return column },
			Tables: func(wrap func(rows.DB) rows.DB) *rows.Tables {
				return rows.New(wrap(&tables{s: s.Driver.(*Store), prepared: make(map[string]*sql.Stmt)}), s.Driver.(*Store), dialect)
			},
		}
	}
}

// scanTexts reads every column as text. NULL becomes the empty text.
func scanTexts(rows *sql.Rows) ([]string, error) {
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	err = rows.Scan(into...)
	texts := make([]string, len(columns))
	for i, v := range values {
		texts[i] = v.String
	}
	return texts, err
}

// TestActiveSeesAnotherProcess checks that a commit of any process invalidates
// the cached list of active promotions.
func TestActiveSeesAnotherProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "largesse.db")
	mine, other := openAt(t, path), openAt(t, path)
	for id := reward.PromotionID(1); id <= 3; id++ {
		for range 2 {
			list, err := mine.PromotionActive(t.Context())
			if err != nil || len(list) != int(id)-1 {
				t.Fatalf("%d active promotions, %v, want %d", len(list), err, id-1)
			}
		}
		fixture.Must(other.PromotionRegister(t.Context(), []store.Registration{{ID: id, Type: reward.Point, Started: true}}, reward.Limits{},
			time.Now()))(t)
	}
}

// TestFull gives the file no more pages, as on a full disk. A batch that does not fit
// is refused whole, what is saved can be read and its counts are right, and the same
// batch is saved when there is space.
func TestFull(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "largesse.db"))
	ctx, now := t.Context(), time.Now()
	const promotion reward.PromotionID = 1
	fixture.Must(s.PromotionRegister(ctx, []store.Registration{{ID: promotion, Type: reward.Point, Started: true}}, reward.Limits{}, now))(t)
	// limit sets how many pages the file may have. SQLite never goes below what it has.
	limit := func(pages int) {
		t.Helper()
		fixture.Must(s.writer.ExecContext(ctx, "PRAGMA max_page_count = "+strconv.Itoa(pages)))(t)
	}
	saved := 0
	save := func() error {
		batch := make([]store.NewPayout, 100)
		for i := range batch {
			batch[i] = store.NewPayout{PromotionID: promotion, TargetID: reward.TargetID(saved + i + 1), UserID: "u", Amount: 5}
		}
		_, err := s.PayoutSave(ctx, store.PayoutSaveParams{Rows: batch, Now: now})
		if err == nil {
			saved += len(batch)
		}
		return err
	}
	balance := func() {
		t.Helper()
		v, err := s.PromotionGet(ctx, promotion)
		if err != nil || v.Counts.Total() != int64(saved) {
			t.Errorf("%d payouts counted, %d saved: %v", v.Counts.Total(), saved, err)
		}
		if c, err := s.SummaryCompare(ctx, promotion, false); err != nil || c.Kept != c.Rows {
			t.Errorf("books: %+v, %v", c, err)
		}
	}
	fixture.OK(t, save())
	if at := s.Tables.FullAt(); !at.IsZero() {
		t.Errorf("full at %v before it was", at)
	}
	limit(1)
	var err error
	for range 1000 {
		if err = save(); err != nil {
			break
		}
	}
	if !errors.Is(err, store.ErrFull) || !reward.HasCode(err, reward.CodeUnavailable) {
		t.Fatalf("a save without space got %v", err)
	}
	if at := s.Tables.FullAt(); at.Before(now) {
		t.Errorf("full at %v, before the test", at)
	}
	balance()
	limit(1 << 30)
	fixture.OK(t, save())
	balance()
}
