package parts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrInUse means that another process holds a lock or lease that must be exclusive.
var ErrInUse = errors.New("in use by another process")

// lockName is the lock file in a data directory. The instance that holds the lock
// writes its name into it.
const lockName = "lock"

// DirLock is the exclusive lock of a data directory. The kernel releases it when the
// process ends, even after a crash.
type DirLock struct{ file *os.File }

// LockDir creates the directory and locks it. If another process holds the lock, it
// returns ErrInUse with the name of the holder.
func LockDir(dir, instance string) (*DirLock, error) {
	if err := MakeDataDir(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, lockName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of data.dir failed: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(file, 256))
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("data.dir %s is %w: %s holds it; stop that instance, or set data.dir of this one to another directory",
				dir, ErrInUse, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("locking data.dir %s failed: %w", dir, err)
	}
	line := fmt.Sprintf("%s (since %s)\n", instance, time.Now().UTC().Format(time.RFC3339))
	if err := errors.Join(file.Truncate(0), writeAt(file, line)); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("writing the lock of data.dir failed: %w", err)
	}
	return &DirLock{file}, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// Release releases the lock.
func (l *DirLock) Release() { unlock(l.file) }

// unlock releases a lock of a file and closes it. Closing alone is not enough: a child
// process that is being started has the file open, too, until it executes its program.
func unlock(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
	_ = file.Close()
}

// LockHolder returns the instance that holds the lock of a data directory, or "" if no
// instance does. It takes a shared lock and releases it immediately.
func LockHolder(dir string) (string, error) {
	file, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("opening the lock of data.dir failed: %w", err)
	}
	defer unlock(file)
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return "", nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return "", fmt.Errorf("testing the lock of data.dir %s failed: %w", dir, err)
	}
	holder, err := io.ReadAll(io.LimitReader(file, 256))
	if err != nil {
		return "", fmt.Errorf("reading the lock of data.dir failed: %w", err)
	}
	return strings.TrimSpace(string(holder)), nil
}
