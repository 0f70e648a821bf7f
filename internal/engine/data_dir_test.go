package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

func link(path string) error {
	victim := filepath.Join(filepath.Dir(path), "victim")
	return errors.Join(os.Mkdir(victim, 0o700), os.Symlink(victim, path))
}

func file(path string) error { return os.WriteFile(path, []byte("junk"), 0o600) }

// TestUnsafeDataDir checks that no instance starts on a directory in which something is as
// another user could have prepared it, or as no instance can use it, that doctor says so
// before, and that neither writes anything there or to what a link names.
func TestUnsafeDataDir(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, path string // of what is wrong
		make       func(path string) error
		says       string
	}{
		{"EverybodyMayChangeTheDirectory", "", func(p string) error { return os.Chmod(p, 0o777) }, "every user of this machine may change"},
		{"EverybodyMayAddToTheDirectory", "", func(p string) error { return os.Chmod(p, 0o777|fs.ModeSticky) }, "every user of this machine may change"},
		{"EverybodyMayChangeAFile", "kafka/topics.json", func(p string) error { return os.Chmod(p, 0o666) }, "every user of this machine may change"},
		{"TheLockIsALink", "lock", link, "is a symbolic link"},
		{"TheLockIsADirectory", "lock", func(p string) error { return os.Mkdir(p, 0o700) }, "is a directory"},
		{"TheLockIsAPipe", "lock", func(p string) error { return syscall.Mkfifo(p, 0o600) }, "is neither a file nor a directory"},
		{"TheDatabaseIsALink", "largesse.db", link, "is a symbolic link"},
		{"TheJournalIsALink", "largesse.db-journal", link, "is a symbolic link"},
		{"TheLogIsALink", "kafka", link, "is a symbolic link"},
		{"TheLogIsAFile", "kafka", file, "is not a directory"},
		{"ALinkInTheLog", "kafka/partitions", link, "is a symbolic link"},
		{"ALinkDeepInTheLog", "kafka/partitions/topic-0/0.dat", link, "is a symbolic link"},
		{"APipeDeepInTheLog", "kafka/partitions/topic-0/0.dat", func(p string) error { return syscall.Mkfifo(p, 0o600) }, "is neither a file nor a directory"},
		{"JunkInTheLog", "kafka/meta.json", file, "is damaged"},
		{"AFileForTheTopicsOfTheLog", "kafka/partitions", file, "is damaged"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := closedDir(t)
			path := filepath.Join(dir, tc.path)
			fixture.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
			if strings.HasSuffix(tc.path, "topics.json") {
				fixture.OK(t, os.WriteFile(path, []byte(`{"version":1}`), 0o600))
			}
			fixture.OK(t, tc.make(path))
			before := files(t, dir)
			cfg := config.Default()
			cfg.Data.Dir, cfg.Money.URL, cfg.Kafka.EmbeddedListen = dir, "http://127.0.0.1:9", "127.0.0.1:0"
			checks := slices.Concat(lookAtData(t.Context(), cfg), lookAtDatabase(t.Context(), cfg, "devel"), lookAtKafka(t.Context(), cfg))
			failed := slices.IndexFunc(checks, func(c Check) bool { return c.Status == CheckFail })
			if failed < 0 || !strings.Contains(checks[failed].Found, path) || !strings.Contains(checks[failed].Found, tc.says) || checks[failed].Advice == "" {
				t.Errorf("doctor: %+v", checks)
			}
			e := fixture.Must(New(cfg, obs.Log{}, WithoutListener()))(t)
			err := e.Start(t.Context())
			if err == nil {
				e.Stop()
			}
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("serve: %v", err)
			}
			for name := range files(t, dir) {
				// The log is read after the database.
				if _, was := before[name]; !was && tc.says != "is damaged" {
					t.Errorf("%s was created", name)
				}
			}
		})
	}
}

// TestDataDirOfAnotherUser checks that no instance uses what another user has prepared,
// at any depth. Only root can give files to others: another user looks at its own files as
// a third one would.
func TestDataDirOfAnotherUser(t *testing.T) {
	t.Parallel()
	const other = 1
	for _, path := range []string{"", "lock", "largesse.db", "largesse.db-wal", "kafka", "kafka/meta.json", "kafka/partitions/topic-0/0.dat"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			dir := closedDir(t)
			for _, name := range []string{"lock", "largesse.db", "largesse.db-wal", "kafka/meta.json", "kafka/partitions/topic-0/0.dat"} {
				fixture.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
				fixture.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
			}
			fixture.OK(t, checkDataDir(dir, os.Getuid()))
			theirs, third := filepath.Join(dir, path), os.Getuid()+2
			info := fixture.Must(os.Lstat(theirs))(t)
			if os.Getuid() == 0 {
				fixture.OK(t, checkDataDir(dir, third)) // root may have made it
				fixture.OK(t, os.Chown(theirs, other, other))
				info = fixture.Must(os.Lstat(theirs))(t)
				if err := checkDataDir(dir, third); err == nil || !strings.Contains(err.Error(), theirs+" belongs to the user with ID") {
					t.Error(err)
				}
				fixture.OK(t, checkDataDir(dir, other)) // the owner may use it
			} else if err := checkDataDir(dir, third); err == nil || !strings.Contains(err.Error(), dir+" belongs to the user with ID") {
				t.Error(err)
			}
			if err := checkStored(theirs, info, third); err == nil || !strings.Contains(err.Error(), theirs+" belongs to the user with ID") {
				t.Error(err)
			}
		})
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	fixture.OK(t, os.Symlink(t.TempDir(), elsewhere))
	fixture.OK(t, checkDataDir(elsewhere, os.Getuid()))
	if os.Getuid() == 0 {
		fixture.OK(t, os.Lchown(elsewhere, other, other))
	}
	if err := checkDataDir(elsewhere, os.Getuid()+2); err == nil || !strings.Contains(err.Error(), elsewhere+" belongs to the user with ID") {
		t.Errorf("a link of another user: %v", err)
	}
}
