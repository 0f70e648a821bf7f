package storetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/store/rows"
)

// blank is a database file with all tables and no rows. Tests get copies, because
// migrations take a sixth of a second of a processor, and hundreds of tests need a file.
var blank struct {
	once  sync.Once
	bytes []byte
	err   error
}

// OpenFile opens a new database at path that has all tables. The caller closes it. Each
// call of a process must have the same driver.
func OpenFile(t testing.TB, path string, open func(ctx context.Context, path string) (*rows.Tables, error)) *rows.Tables {
	t.Helper()
	blank.once.Do(func() {
		dir, err := os.MkdirTemp("", "largesse-blank-")
		if err != nil {
			blank.err = err
			return
		}
		defer os.RemoveAll(dir)
		made := filepath.Join(dir, "rows.db")
		s, err := open(t.Context(), made)
		if err != nil {
			blank.err = err
			return
		}
		err = s.Migrate(t.Context())
		if s.Close(); err != nil {
			blank.err = err
			return
		}
		if left, err := os.Stat(made + "-wal"); err == nil && left.Size() > 0 {
			blank.err = fmt.Errorf("%s is not closed: %d bytes are in its log", made, left.Size())
			return
		}
		blank.bytes, blank.err = os.ReadFile(made)
	})
	if blank.err != nil {
		t.Fatal(blank.err)
	}
	fixture.OK(t, os.WriteFile(path, blank.bytes, 0o600))
	return fixture.Must(open(t.Context(), path))(t)
}
