package store_test

import (
	"testing"
	"testing/fstest"

	"github.com/largesse/largesse/internal/store"
)

func TestNewestMigration(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{"migrations/00002_more.sql": {}, "migrations/00010_most.sql": {}, "migrations/00001_create.sql": {}}
	if got, err := store.NewestMigration(files); err != nil || got != 10 {
		t.Errorf("version %d, error %v", got, err)
	}
	files["migrations/later.sql"] = &fstest.MapFile{}
	if _, err := store.NewestMigration(files); err == nil {
		t.Error("a name without a number was read")
	}
}
