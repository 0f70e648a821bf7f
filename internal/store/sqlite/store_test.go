package sqlite

import (
	"path/filepath"
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

func BenchmarkStore(b *testing.B) { storetest.Benchmark(b, open) }
