package store

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// NewestMigration is the schema version that a driver's migrations lead to:
// the highest number that the name of a file begins with (00001_name.sql).
func NewestMigration(files fs.FS) (int64, error) {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		return 0, fmt.Errorf("read the migrations: %w", err)
	}
	newest := int64(0)
	for _, name := range names {
		number, _, _ := strings.Cut(strings.TrimPrefix(name, "migrations/"), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the migrations: the name of %s begins with no number", name)
		}
		newest = max(newest, version)
	}
	return newest, nil
}
