package postgres

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// acrossShards has the statements that do not name their promotions or templates, by reason.
var acrossShards = map[string][]string{
	"a list for people, over all promotions or templates": {
		"audit*", "dead letters*", "list promotions*", "search promotions*", "list API keys", "list UNKNOWN payouts", "list reconciliations",
		"count error codes", "list deliveries*",
	},
	"a list of one user, over their promotions or templates": {
		"payouts of a user", "answers of a user", "promotions that paid users", "list UNKNOWN payouts of a user", "coupons of a user", "history of a user", "draws of a user",
	},
	"a page that compares the promotion and the ID at once": {"list uploads"},
	"who has a coupon names it by its ID or code":           {"a coupon", "coupons by code", "use a coupon", "confirm a coupon", "cancel coupons", "end holds"},
	"a round of an instance, over all promotions or templates": {
		"active promotions", "whole list", "changes", "due promotions", "promotions to ask for", "active templates", "claim due lookups", "claim lookups", "expire coupons",
		"find ended holds", "find the oldest payouts", "undecided payouts", "mark points of promotions", "mark points of templates",
		"fold points of promotions", "delete folded points of promotions",
	},
	"a limit of an author over all their promotions, checked when one starts": {"grant a promotion its worth"},
	"API keys, idempotency keys and the audit are of the whole installation": {
		"find an API key", "use an API key", "claim a key", "read a key", "finish a key", "drop a key", "release a key", "delete expired keys",
		"end an audit line", "drop an audit line", "forget audit lines",
	},
	"a dead letter may name no promotion": {"close a dead letter", "forget dead letters"},
	"deliveries to an endpoint are of all promotions and templates": {
		"claim webhook deliveries", "find due endpoints", "claim deliveries", "count pending deliveries", "find bulk events to drop",
		"delete old deliveries", "abandon old deliveries", "delete deliveries of nobody",
	},
}

// otherKeys has the primary keys and indexes that batches use although they begin with
// neither a promotion nor a template, by reason.
var otherKeys = map[string][]string{
	"offsets of Kafka are committed with the rows of their records":       {"kafka_offsets_pkey"},
	"events are recorded with the change that they tell":                  {"webhook_endpoints_pkey", "webhook_deliveries_pkey"},
	"who has a coupon names it by its ID":                                 {"coupons_pkey"},
	"a statement on one user that also names the template":                {"coupons_user", "coupon_rejections_user"},
	"a list of one code that also names the template":                     {"coupons_code_of_template"},
	"a statement on one promotion that also names its status":             {"promotions_status"},
	"an upload is continued by its ID":                                    {"uploads_pkey"},
	"an import is continued by its ID, and has the codes of one template": {"coupon_code_imports_pkey", "coupon_codes_pkey", "coupon_codes_code"},
}

// TestStatementsNameTheirShard checks that a statement reaches each row by its promotion or
// template, and that the tables and indexes it uses begin with it. So a database that is
// distributed by promotion and template finds the rows of a batch on one shard each.
func TestStatementsNameTheirShard(t *testing.T) {
	t.Parallel()
	s := fresh(t, 2)
	fillPlanTables(t, s)
	conn := acquire(t, s)
	schema := readShardKeys(t, conn)
	across, other := allOf(acrossShards), allOf(otherKeys)
	needed := make(map[string]bool)
	for name, sql := range statements() {
		problems := schema.problems(planOf(t, conn, name, sql))
		excepted := false
		for _, pattern := range across {
			if ok, err := path.Match(pattern, name); ok || err != nil {
				needed[pattern], excepted = true, true
			}
		}
		for _, p := range problems {
			switch {
			case excepted:
			case slices.Contains(other, p.key):
				needed[p.key] = true
			default:
				t.Errorf("%s: %s", name, p.text)
			}
		}
		if excepted && len(problems) == 0 {
			t.Errorf("%s names its promotion or template, so it is no exception", name)
		}
	}
	for _, exception := range append(across, other...) {
		if !needed[exception] {
			t.Errorf("nothing needs the exception %q", exception)
		}
	}
}

func allOf(byReason map[string][]string) (all []string) {
	for _, names := range byReason {
		all = append(all, names...)
	}
	return all
}

// shardKeys says by what a table is distributed.
type shardKeys struct {
	column  map[string]string // by table: its promotion or template
	primary map[string]string // by table: its primary key
	first   map[string]string // by index: its first column
}

func readShardKeys(t *testing.T, conn *pgxpool.Conn) shardKeys {
	t.Helper()
	k := shardKeys{
		column:  map[string]string{"promotions": "id", "coupon_templates": "id"},
		primary: make(map[string]string), first: make(map[string]string),
	}
	tables, _ := conn.Query(t.Context(), `SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND column_name IN ('promotion_id', 'template_id')`)
	var table, column, index string
	var primary bool
	if _, err := pgx.ForEachRow(tables, []any{&table, &column}, func() error {
		k.column[table] = column
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	indexes, _ := conn.Query(t.Context(), `SELECT r.relname, i.relname, pg_get_indexdef(x.indexrelid, 1, false), x.indisprimary
FROM pg_index x JOIN pg_class r ON r.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid WHERE r.relnamespace = current_schema()::regnamespace`)
	if _, err := pgx.ForEachRow(indexes, []any{&table, &index, &column, &primary}, func() error {
		k.first[index] = column
		if primary {
			k.primary[table] = index
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return k
}

// shardProblem is how a step of a plan does without the promotion or the template. The key is
// the primary key or the index.
type shardProblem struct{ key, text string }

var planStep = regexp.MustCompile(`(?:using (\w+) on|(?:Insert|Update|Delete) on) (\w+)`)

func (k shardKeys) problems(plan string) (all []shardProblem) {
	lines := strings.Split(plan, "\n")
	for i, line := range lines {
		step := planStep.FindStringSubmatch(line)
		if step == nil {
			continue
		}
		index, table := step[1], step[2]
		column := k.column[table]
		for _, key := range []string{k.primary[table], index} {
			if key != "" && (column == "" || k.first[key] != column) {
				all = append(all, shardProblem{key, fmt.Sprintf("%s of %s begins with %s", key, table, k.first[key])})
			}
		}
		if index == "" || column == "" {
			continue
		}
		conditions := lines[i+1:]
		if end := slices.IndexFunc(conditions, func(line string) bool {
			return !strings.Contains(line, "Cond: ") && !strings.Contains(line, "Filter: ")
		}); end >= 0 {
			conditions = conditions[:end]
		}
		if !regexp.MustCompile(`\b` + column + ` = `).MatchString(strings.Join(conditions, "\n")) {
			all = append(all, shardProblem{"", fmt.Sprintf("%s is read without its %s:\n%s", table, column, plan)})
		}
	}
	return all
}
