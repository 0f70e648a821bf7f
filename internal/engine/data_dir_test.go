package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestDataDirOfAnotherUser checks that no instance follows the links of another user.
func TestDataDirOfAnotherUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := checkDataDir(dir, os.Getuid()); err != nil {
		t.Error(err)
	}
	if err := checkDataDir("/", os.Getuid()+1); err != nil {
		t.Errorf("a directory of root: %v", err)
	}
	theirs := filepath.Join(dir, "theirs")
	fixture.OK(t, os.Mkdir(theirs, dirMode))
	if os.Getuid() == 0 {
		fixture.OK(t, os.Chown(theirs, 1, 1))
	}
	if err := checkDataDir(theirs, os.Getuid()+2); err == nil || !strings.Contains(err.Error(), "belongs to the user with ID") {
		t.Errorf("a directory of another user: %v", err)
	}
	for _, name := range []string{lockName, databaseName, databaseName + "-wal", brokerName} {
		dir := t.TempDir()
		fixture.OK(t, os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, name)))
		if err := makeDataDir(dir); err == nil || !strings.Contains(err.Error(), "is a symbolic link") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
