package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dustin/go-humanize"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/parts"
)

// The free space that data.dir should have and must have, in bytes.
const (
	diskFreeGood = 1 << 30
	diskFreeMin  = 64 << 20
)

func lookAtData(_ context.Context, cfg config.Config) []Check {
	if cfg.Database.URL != "" && len(cfg.Kafka.Brokers) > 0 {
		return []Check{passed("data", "data.dir is not needed: the database and Kafka run on servers")}
	}
	return []Check{lookAtDir(cfg.Data.Dir), lookAtAccess(cfg.Data.Dir), lookAtDisk(cfg.Data.Dir)}
}

// lookAtAccess checks whether other users of this machine may enter data.dir.
func lookAtAccess(dir string) Check {
	if err := parts.CheckClosed(dir); err != nil {
		found, advice, _ := strings.Cut(err.Error(), ": ")
		return passed("data.access", "%s", found).but(CheckWarn, "%s", advice)
	}
	return passed("data.access", "no other user of this machine may enter %s", dir)
}

// lookAtDir checks whether an instance could use data.dir, or uses it.
func lookAtDir(dir string) Check {
	c := passed("data", "data.dir %s is writable and not in use", dir)
	if err := parts.CheckDataDir(dir, os.Getuid()); err != nil {
		if u, ok := errors.AsType[*parts.UnusableError](err); ok {
			return c.saying("%s", u.Found).but(CheckFail, "%s", u.Advice)
		}
		return c.saying("%s", OneLine(err)).but(CheckFail, "let this user read it, or set data.dir to another directory")
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := tryDir(existing(dir)); err != nil {
			return c.saying("data.dir %s does not exist and cannot be created: %s", dir, OneLine(err)).
				but(CheckFail, "create it, let this user write to its parent directory, or set data.dir to another directory")
		}
		return c.saying("data.dir %s does not exist yet; the first start creates it", dir)
	}
	holder, err := parts.LockHolder(dir)
	if err != nil {
		return c.saying("%s", OneLine(err)).but(CheckWarn, "check the file manually: an instance must be able to lock it")
	}
	if holder != "" {
		return c.saying("data.dir %s is in use by %s", dir, holder)
	}
	return c
}

// skipUnusable returns the check of a part whose files are in a data.dir that cannot be
// used, or nil. Nothing there is opened: it may be a link of another user.
func skipUnusable(part, dir string) []Check {
	if parts.CheckDataDir(dir, os.Getuid()) == nil {
		return nil
	}
	return []Check{passed(part, "not checked, because data.dir cannot be used").but(CheckWarn, "correct data.dir first")}
}

// existing returns the directory itself, or its closest parent that exists.
func existing(dir string) string {
	dir = filepath.Clean(dir)
	for {
		// A dangling link exists, but nothing can be created below it.
		if _, err := os.Lstat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// tryDir creates a directory in dir and removes it again. The mode bits alone are
// not reliable, for example on /proc or for root.
func tryDir(dir string) error {
	made, err := os.MkdirTemp(dir, ".largesse-doctor-")
	if err != nil {
		return err
	}
	return os.Remove(made)
}

func lookAtDisk(dir string) Check {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(existing(dir), &disk); err != nil {
		return passed("data.disk", "reading the free space at %s failed: %v", dir, err).but(CheckWarn, "check it manually: df %s", dir)
	}
	return judgeDisk(dir, disk.Bavail*uint64(disk.Bsize)) //nolint:gosec // a block's size is above 0
}

func judgeDisk(dir string, free uint64) Check {
	c := passed("data.disk", "%s free at %s", humanize.IBytes(free), dir)
	switch {
	case free < diskFreeMin:
		return c.but(CheckFail, "free some space: nothing can be stored on a full disk")
	case free < diskFreeGood:
		return c.but(CheckWarn, "free some space: the database and the log of Kafka grow; keep at least %s free", humanize.IBytes(diskFreeGood))
	}
	return c
}

// lookAtListen checks whether the embedded broker could listen.
func lookAtListen(ctx context.Context, cfg config.Config) Check {
	address := cfg.Kafka.EmbeddedListen
	if login := parts.BrokerLogin(cfg); login != nil && cfg.Kafka.SASLMechanism == "" {
		return passed("kafka", "the embedded broker is for this instance only; set kafka.sasl-mechanism, kafka.sasl-user and kafka.sasl-password-file to publish from other programs")
	}
	if host, port, _ := config.HostPort(address); port == 0 {
		return passed("kafka", "the embedded broker uses any free port of %s", host)
	}
	// The instance that uses data.dir probably listens there.
	if holder, err := parts.LockHolder(cfg.Data.Dir); err == nil && holder != "" {
		return passed("kafka", "the embedded broker of %s uses data.dir", holder)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return passed("kafka", "the embedded broker cannot listen: %s", OneLine(err)).
			but(CheckFail, "stop the program that listens there, or set kafka.embedded-listen to another port; port 0 means any free port")
	}
	_ = l.Close()
	return passed("kafka", "the embedded broker can listen on %s", address)
}
