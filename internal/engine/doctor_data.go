package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dustin/go-humanize"

	"github.com/largesse/largesse/internal/config"
)

// The free space that data.dir should have and must have, in bytes.
const (
	diskEnough = 1 << 30
	diskLeast  = 64 << 20
)

func lookAtData(_ context.Context, cfg config.Config) []Check {
	if cfg.Database.URL != "" && len(cfg.Kafka.Brokers) > 0 {
		return []Check{passed("data", "data.dir is not needed: database and Kafka are servers")}
	}
	return []Check{lookAtFolder(cfg.Data.Dir), lookAtDisk(cfg.Data.Dir)}
}

// lookAtFolder finds out whether an instance could take data.dir, or has it.
func lookAtFolder(dir string) Check {
	c := passed("data", "data.dir %s can be written and nobody uses it", dir)
	stat, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.Found = fmt.Sprintf("data.dir %s is not there yet; it is made at the start", dir)
		if err := tryFolder(existing(dir)); err != nil {
			c.Found = fmt.Sprintf("data.dir %s is not there and cannot be made: %s", dir, oneLine(err))
			return c.but(CheckFail, "make it, let this user write to its parent, or name another")
		}
		return c
	case err != nil:
		c.Found = oneLine(err)
		return c.but(CheckFail, "name another data.dir, or let this user read it")
	case !stat.IsDir():
		c.Found = fmt.Sprintf("data.dir %s is no folder", dir)
		return c.but(CheckFail, "name another data.dir")
	}
	if err := writable(dir); err != nil {
		c.Found = oneLine(err)
		return c.but(CheckFail, "let this user write to it, or name another data.dir")
	}
	holder, err := dirHolder(dir)
	if err != nil {
		c.Found = oneLine(err)
		return c.but(CheckWarn, "look at the file by hand: an instance has to lock it")
	}
	if holder != "" {
		c.Found = fmt.Sprintf("data.dir %s is in use by %s", dir, holder)
	}
	return c
}

// dirHolder says who has the lock of a data folder; "" = nobody. It asks the
// kernel for a shared lock, which is given back at once.
func dirHolder(dir string) (string, error) {
	file, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open the lock of data.dir: %w", err)
	}
	defer file.Close()
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return "", nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return "", fmt.Errorf("ask for the lock of data.dir %s: %w", dir, err)
	}
	holder, err := io.ReadAll(io.LimitReader(file, 256))
	if err != nil {
		return "", fmt.Errorf("read the lock of data.dir: %w", err)
	}
	return strings.TrimSpace(string(holder)), nil
}

// existing is the folder itself or the nearest one above it that is there.
func existing(dir string) string {
	dir = filepath.Clean(dir)
	for {
		// A link that leads nowhere is there, and nothing can be made under it.
		if _, err := os.Lstat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// tryFolder makes a folder in dir and takes it away again: what may be written
// does not tell, say, on /proc or for root.
func tryFolder(dir string) error {
	made, err := os.MkdirTemp(dir, ".largesse-doctor-")
	if err != nil {
		return err
	}
	return os.Remove(made)
}

func writable(dir string) error {
	const writeAndEnter = 2 | 1 // W_OK and X_OK of access(2)
	if err := syscall.Access(dir, writeAndEnter); err != nil {
		return fmt.Errorf("%s cannot be written by this user: %w", dir, err)
	}
	return nil
}

func lookAtDisk(dir string) Check {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(existing(dir), &disk); err != nil {
		return passed("data.disk", "the free space at %s could not be read: %v", dir, err).but(CheckWarn, "look at it by hand: df %s", dir)
	}
	return judgeDisk(dir, disk.Bavail*uint64(disk.Bsize)) //nolint:gosec // a block's size is above 0
}

func judgeDisk(dir string, free uint64) Check {
	c := passed("data.disk", "%s free at %s", humanize.IBytes(free), dir)
	switch {
	case free < diskLeast:
		return c.but(CheckFail, "free some: nothing can be saved on a full disk")
	case free < diskEnough:
		return c.but(CheckWarn, "free some: rows and Kafka's log grow, have at least %s", humanize.IBytes(diskEnough))
	}
	return c
}

// lookAtListen finds out whether the embedded broker could listen.
func lookAtListen(ctx context.Context, cfg config.Config) Check {
	address := cfg.Kafka.EmbeddedListen
	if host, port, _ := config.HostPort(address); port == 0 {
		return passed("kafka", "the embedded broker takes any free port of %s", host)
	}
	// Whoever holds the folder may well be the one that listens.
	if holder, err := dirHolder(cfg.Data.Dir); err == nil && holder != "" {
		return passed("kafka", "the embedded broker of %s has data.dir", holder)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return passed("kafka", "the embedded broker could not listen: %s", oneLine(err)).
			but(CheckFail, "end whatever listens there, or set kafka.embedded-listen to another port, 0 for any free one")
	}
	_ = l.Close()
	return passed("kafka", "the embedded broker can listen on %s", address)
}
