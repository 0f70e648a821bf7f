package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/largesse/largesse/internal/config"
)

// Modes of what an instance stores in data.dir: only its own user may read it.
const (
	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600
	// openBits are the bits of a mode that admit other users.
	openBits fs.FileMode = 0o077
)

// Names in data.dir.
const (
	databaseName = "largesse.db"
	brokerName   = "kafka"
)

// brokerDir returns the directory of the embedded broker.
func brokerDir(cfg config.Config) string { return filepath.Join(cfg.Data.Dir, brokerName) }

// makeDataDir creates data.dir. It does not change the mode of an existing one, which may
// be any directory that checkDataDir accepts.
func makeDataDir(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("creating data.dir failed: %w", err)
	}
	return checkDataDir(dir, os.Getuid())
}

// checkDataDir refuses a data.dir in which another user than uid and root decides what the
// files are: by symbolic links there, an instance would write to any file that it may
// write to.
func checkDataDir(dir string, uid int) error {
	stat, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("reading data.dir failed: %w", err)
	}
	if owner, ok := stat.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 && int(owner.Uid) != uid {
		return fmt.Errorf("data.dir %s belongs to the user with ID %d: run Largesse as that user, or set data.dir to a directory of user %d", dir, owner.Uid, uid)
	}
	for _, name := range []string{lockName, databaseName, databaseName + "-wal", databaseName + "-shm", brokerName} {
		path := filepath.Join(dir, name)
		if file, err := os.Lstat(path); err == nil && file.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a symbolic link, which Largesse does not follow: move the file there, or set data.dir to where it is", path)
		}
	}
	return nil
}

// closeDataDir takes the rights of other users away from everything that instances store
// in data.dir, also from what earlier versions stored there. The files that the embedded
// broker creates later are in a directory that only this user may enter.
func closeDataDir(cfg config.Config) error {
	var failed error
	db := sqlitePath(cfg)
	for _, path := range []string{filepath.Join(cfg.Data.Dir, lockName), db, db + "-wal", db + "-shm"} {
		failed = errors.Join(failed, closePath(path, fileMode))
	}
	kafka := brokerDir(cfg)
	if len(cfg.Kafka.Brokers) == 0 {
		failed = errors.Join(failed, os.MkdirAll(kafka, dirMode))
	}
	return errors.Join(failed, filepath.WalkDir(kafka, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.IsDir():
			return closePath(path, dirMode)
		case entry.Type().IsRegular():
			return closePath(path, fileMode)
		}
		return nil
	}))
}

// closePath sets the mode of a file that other users may use. A missing file is closed.
func closePath(path string, mode fs.FileMode) error {
	stat, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && stat.Mode().Perm()&openBits == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// openDir returns an error that says that other users may enter or list dir, or nil.
func openDir(dir string) error {
	stat, err := os.Stat(dir)
	if err != nil || stat.Mode().Perm()&openBits == 0 {
		return nil //nolint:nilerr // a missing directory is open to nobody
	}
	return fmt.Errorf("data.dir %s is open to other users of this machine (mode %04o): run chmod 700 on it", dir, stat.Mode().Perm())
}
