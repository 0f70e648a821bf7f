package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/largesse/largesse/internal/config"
)

// Modes of what an instance stores in data.dir: only its own user may read it.
const (
	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600
	// openBits are the bits of a mode that admit other users.
	openBits fs.FileMode = 0o077
)

// brokerDir returns the directory of the embedded broker.
func brokerDir(cfg config.Config) string { return filepath.Join(cfg.Data.Dir, "kafka") }

// makeDataDir creates data.dir. It does not change the mode of an existing one, which may
// be any directory.
func makeDataDir(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("creating data.dir failed: %w", err)
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
