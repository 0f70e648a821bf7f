package postgres

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/store"
)

// lent are the PostgreSQL schemas of this process.
var lent struct {
	sync.Mutex
	all, free []string
}

// lend opens a schema that has all tables and no rows, and that no other test has at the
// same time: migrations take a third of a second of a processor, and hundreds of tests
// need a schema. A test that changes tables or their statistics calls open.
func lend(t testing.TB) store.Store {
	t.Helper()
	name, isNew := borrow()
	s := openSchema(t, name, 8)
	if isNew {
		if err := s.Migrate(t.Context()); err != nil {
			s.Close()
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		defer s.Close()
		if _, err := s.pool.Exec(context.Background(), strings.Replace(emptySchema, "$SCHEMA", name, 1)); err != nil {
			t.Errorf("empty schema %s: %v", name, err)
			return
		}
		lent.Lock()
		lent.free = append(lent.free, name)
		lent.Unlock()
	})
	return s
}

// borrow takes a schema out of the free ones, or names a new one.
func borrow() (name string, isNew bool) {
	lent.Lock()
	defer lent.Unlock()
	if last := len(lent.free) - 1; last >= 0 {
		name, lent.free = lent.free[last], lent.free[:last]
		return name, false
	}
	name = fmt.Sprintf("largesse lent %d-%d", os.Getpid(), len(lent.all)+1)
	lent.all = append(lent.all, name)
	return name, true
}

// dropLent drops the schemas that were lent, and ends the process.
func dropLent(code int) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	db, err := pgx.Connect(ctx, os.Getenv("LARGESSE_TEST_POSTGRES"))
	for _, name := range lent.all {
		if err == nil {
			_, err = db.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "drop the lent schemas: %v\n", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// emptySchema removes all rows of a schema, and lets its sequences start again. It leaves
// empty tables alone, and the list of migrations.
const emptySchema = `DO $$
DECLARE
  t record;
  has boolean;
  filled text := '';
BEGIN
  FOR t IN SELECT c.oid::regclass AS name, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = '$SCHEMA' AND c.relkind IN ('r', 'S') AND NOT c.relispartition AND c.relname NOT LIKE 'goose%'
  LOOP
    IF t.relkind = 'S' THEN
      EXECUTE format('ALTER SEQUENCE %s RESTART', t.name);
      CONTINUE;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', t.name) INTO has;
    IF has THEN
      filled := filled || ', ' || t.name;
    END IF;
  END LOOP;
  IF filled <> '' THEN
    EXECUTE 'TRUNCATE ' || substr(filled, 3) || ' CASCADE';
  END IF;
END
$$`
