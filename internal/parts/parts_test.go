package parts

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
)

// Every credential of the settings reaches the client.
func TestMoneyCredentials(t *testing.T) {
	t.Parallel()
	c, warnings, err := config.Load(config.LoadParams{Flags: map[string]string{
		"money.url": "https://pay", "money.auth-header": "X-Token", "money.token-file": "t", "money.client-cert": "c", "money.client-key": "k", "money.ca-file": "a",
	}})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	want := money.Credentials{Header: "X-Token", TokenFile: "t", CAFile: "a", CertFile: "c", KeyFile: "k"}
	if got := MoneyConfig(c, obs.Log{}).Credentials; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	_, warnings, err = config.Load(config.LoadParams{Flags: map[string]string{"money.url": "http://pay", "money.token-file": "t"}})
	if err != nil || len(warnings) != 2 || !strings.HasPrefix(warnings[0], "money.url is http:// to pay") || !strings.HasPrefix(warnings[1], "money.url is http://, so credentials") {
		t.Errorf("error %v, warnings %q", err, warnings)
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

// TestReleaseWhileAChildStarts gives the file of a lock a second descriptor, as a child
// process has it between fork and exec.
func TestReleaseWhileAChildStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock := fixture.Must(LockDir(dir, "host-1"))(t)
	child := fixture.Must(syscall.Dup(int(lock.file.Fd())))(t)
	defer syscall.Close(child)
	lock.Release()
	lock = fixture.Must(LockDir(dir, "host-2"))(t)
	lock.Release()
}

func TestAPIConnections(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ set, files, want int }{
		{20_000, 1 << 20, 20_000},
		{20_000, 20_000, 20_000 - 2048 - 25 - filesAside},
		{10_000, 20_000, 10_000},
		{20_000, 1024, apiConnectionsMin},
	} {
		cfg := config.Default()
		cfg.HTTP.MaxConnections = tc.set
		if got := APIConnections(cfg, tc.files); got != tc.want {
			t.Errorf("%d set, %d files: %d, want %d", tc.set, tc.files, got, tc.want)
		}
	}
}
