package sqlite

import (
	"database/sql"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB) store.Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "a file? with # 100% odd name.db"))
}

func openAt(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Exercise(t, open)
}

// TestPlans holds that the question of a cancelled promotion, asked again and
// again, does not walk through its payouts.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "largesse.db"))
	plan, err := collect(t.Context(), s.reader, func(rows *sql.Rows) (string, error) {
		var id, parent, unused int
		var detail string
		err := rows.Scan(&id, &parent, &unused, &detail)
		return detail, err
	}, `EXPLAIN QUERY PLAN `+undecidedSQL, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"SEARCH payouts USING INDEX payouts_open (promotion_id=? AND state=?)"}; !slices.Equal(plan, want) {
		t.Errorf("the plan is %q, want %q", plan, want)
	}
}

func BenchmarkStore(b *testing.B) { storetest.Benchmark(b, open) }
