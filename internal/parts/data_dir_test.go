package parts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestDataDirOfAnotherUser checks that no instance uses what another user has prepared,
// at any depth. Only root can give files to others: another user looks at its own files as
// a third one would.
func TestDataDirOfAnotherUser(t *testing.T) {
	t.Parallel()
	const other = 1
	for _, path := range []string{"", "lock", "largesse.db", "largesse.db-wal", "kafka", "kafka/meta.json", "kafka/partitions/topic-0/0.dat"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			for _, name := range []string{"lock", "largesse.db", "largesse.db-wal", "kafka/meta.json", "kafka/partitions/topic-0/0.dat"} {
				fixture.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
				fixture.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
			}
			fixture.OK(t, CheckDataDir(dir, os.Getuid()))
			theirs, third := filepath.Join(dir, path), os.Getuid()+2
			info := fixture.Must(os.Lstat(theirs))(t)
			if os.Getuid() == 0 {
				fixture.OK(t, CheckDataDir(dir, third)) // root may have made it
				fixture.OK(t, os.Chown(theirs, other, other))
				info = fixture.Must(os.Lstat(theirs))(t)
				if err := CheckDataDir(dir, third); err == nil || !strings.Contains(err.Error(), theirs+" belongs to the user with ID") {
					t.Error(err)
				}
				fixture.OK(t, CheckDataDir(dir, other)) // the owner may use it
			} else if err := CheckDataDir(dir, third); err == nil || !strings.Contains(err.Error(), dir+" belongs to the user with ID") {
				t.Error(err)
			}
			if err := checkStored(theirs, info, third); err == nil || !strings.Contains(err.Error(), theirs+" belongs to the user with ID") {
				t.Error(err)
			}
		})
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	fixture.OK(t, os.Symlink(t.TempDir(), elsewhere))
	fixture.OK(t, CheckDataDir(elsewhere, os.Getuid()))
	if os.Getuid() == 0 {
		fixture.OK(t, os.Lchown(elsewhere, other, other))
	}
	if err := CheckDataDir(elsewhere, os.Getuid()+2); err == nil || !strings.Contains(err.Error(), elsewhere+" belongs to the user with ID") {
		t.Errorf("a link of another user: %v", err)
	}
}
