package doctor

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
	"github.com/largesse/largesse/internal/engine"
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
			e := fixture.Must(engine.New(cfg, obs.Log{}, engine.WithoutListener()))(t)
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

// TestDataDirIsClosed checks that other users read nothing of what an instance stores,
// also where a directory and files of an earlier version exist, and that it says so
// when they may enter the directory.
func TestDataDirIsClosed(t *testing.T) {
	for name, mode := range map[string]fs.FileMode{"Open": 0o755, "Closed": 0o700} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.Data.Dir, cfg.Money.URL = filepath.Join(t.TempDir(), "data"), "http://127.0.0.1:9"
			before := syscall.Umask(0o022)
			defer syscall.Umask(before)
			fixture.OK(t, os.MkdirAll(filepath.Join(cfg.Data.Dir, "kafka"), 0o755))
			fixture.OK(t, os.Chmod(cfg.Data.Dir, mode))
			for _, old := range []string{"largesse.db", "lock", "kafka/old.json"} {
				fixture.OK(t, os.WriteFile(filepath.Join(cfg.Data.Dir, old), nil, 0o644))
			}
			var out fixture.Buffer
			log := fixture.Must(obs.NewLog(&out, "info", "text"))(t)
			e := fixture.Must(engine.New(cfg, log, engine.WithoutListener()))(t)
			fixture.OK(t, e.Start(t.Context()))
			defer e.Stop()
			for _, path := range []string{"largesse.db", "largesse.db-wal", "largesse.db-shm", "lock", "kafka", "kafka/old.json"} {
				stat := fixture.Must(os.Stat(filepath.Join(cfg.Data.Dir, path)))(t)
				if stat.Mode().Perm()&0o077 != 0 {
					t.Errorf("%s is open to others: %v", path, stat.Mode())
				}
			}
			if warned := strings.Contains(out.String(), "is open to other users"); warned != (name == "Open") {
				t.Errorf("warned: %v\n%s", warned, out.String())
			}
			if status := verdict(t, lookAtData(t.Context(), cfg), "data.access"); (status == CheckWarn) != (name == "Open") {
				t.Errorf("doctor: %q", status)
			}
		})
	}
}
