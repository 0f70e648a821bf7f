package store

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// NewestMigration returns the schema version after all migrations of a driver.
// It is the highest number at the beginning of a file name (00001_name.sql).
func NewestMigration(files fs.FS) (int64, error) {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		return 0, fmt.Errorf("list the migrations: %w", err)
	}
	newest := int64(0)
	for _, name := range names {
		number, _, _ := strings.Cut(strings.TrimPrefix(name, "migrations/"), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the name of migration %s does not begin with a number", name)
		}
		newest = max(newest, version)
	}
	return newest, nil
}
