package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	if err := os.Mkdir(theirs, dirMode); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(theirs, 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkDataDir(theirs, os.Getuid()+2); err == nil || !strings.Contains(err.Error(), "belongs to the user with ID") {
		t.Errorf("a directory of another user: %v", err)
	}
	for _, name := range []string{lockName, databaseName, databaseName + "-wal", brokerName} {
		dir := t.TempDir()
		if err := os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := makeDataDir(dir); err == nil || !strings.Contains(err.Error(), "is a symbolic link") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
