package parts

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
	// everybodyWrites is the bit of a mode that lets every user change the file.
	everybodyWrites fs.FileMode = 0o002
)

// Names in data.dir.
const (
	databaseName = "largesse.db"
	brokerName   = "kafka"
)

// BrokerDir returns the directory of the embedded broker.
func BrokerDir(cfg config.Config) string { return filepath.Join(cfg.Data.Dir, brokerName) }

// dataFiles lists the files that instances store in data.dir itself.
var dataFiles = []string{lockName, databaseName, databaseName + "-journal", databaseName + "-wal", databaseName + "-shm"}

// MakeDataDir creates data.dir. It does not change the mode of an existing one, which may
// be any directory that CheckDataDir accepts.
func MakeDataDir(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("creating data.dir failed: %w", err)
	}
	return CheckDataDir(dir, os.Getuid())
}

// UnusableError says why data.dir cannot be used, and what to do.
type UnusableError struct{ Found, Advice string }

// Error returns both.
func (u *UnusableError) Error() string { return u.Found + ": " + u.Advice }

// CheckDataDir refuses a data.dir that user uid cannot use, or in which another user than
// uid and root decides what the files are: by a symbolic link there, an instance would
// write to any file that it may write to. It looks at everything that instances store
// there, and at no other file. A missing directory is usable: MakeDataDir creates it.
// Every command asks it, before it opens anything in data.dir.
func CheckDataDir(dir string, uid int) error {
	link, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	stat, statErr := os.Stat(dir)
	if errors.Is(statErr, fs.ErrNotExist) {
		return nil // a link to nothing, below which nothing can be created
	}
	if err := errors.Join(err, statErr); err != nil {
		return fmt.Errorf("reading data.dir failed: %w", err)
	}
	if !stat.IsDir() {
		return &UnusableError{fmt.Sprintf("data.dir %s is not a directory", dir), "set data.dir to a directory"}
	}
	for _, of := range []fs.FileInfo{link, stat} {
		if owner, others := otherOwner(of, uid); others {
			return &UnusableError{
				fmt.Sprintf("data.dir %s belongs to the user with ID %d", dir, owner),
				fmt.Sprintf("run Largesse as that user, or set data.dir to a directory of user %d", uid),
			}
		}
	}
	if stat.Mode().Perm()&everybodyWrites != 0 {
		return &UnusableError{
			fmt.Sprintf("every user of this machine may change data.dir %s (mode %04o)", dir, stat.Mode().Perm()),
			"run chmod 700 on it, or set data.dir to a new directory in it, which Largesse creates for its own user",
		}
	}
	if err := allowed(dir, stat); err != nil {
		return err
	}
	for _, name := range append([]string{brokerName}, dataFiles...) {
		top := filepath.Join(dir, name)
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			var info fs.FileInfo
			if err == nil {
				info, err = entry.Info()
			}
			switch {
			case errors.Is(err, fs.ErrNotExist): // an instance that is running has removed it
				return nil
			case err != nil:
				return fmt.Errorf("reading data.dir failed: %w", err)
			case path == top && info.IsDir() && name != brokerName:
				return &UnusableError{path + " is a directory, and Largesse stores a file there", "move it away, or set data.dir to another directory"}
			case path == top && info.Mode().IsRegular() && name == brokerName:
				return &UnusableError{path + " is not a directory", "move it away, or set data.dir to another directory"}
			}
			return checkStored(path, info, uid)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkStored refuses something in data.dir that is no file or directory of user uid or
// root, or that others may change.
func checkStored(path string, info fs.FileInfo, uid int) error {
	owner, others := otherOwner(info, uid)
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return &UnusableError{path + " is a symbolic link, which Largesse does not follow", "move the file there, or set data.dir to where it is"}
	case !mode.IsRegular() && !mode.IsDir():
		return &UnusableError{path + " is neither a file nor a directory", "remove it"}
	case others:
		return &UnusableError{
			fmt.Sprintf("%s belongs to the user with ID %d", path, owner),
			fmt.Sprintf("remove it, or make user %d its owner if you know that the content is right", uid),
		}
	case mode.Perm()&everybodyWrites != 0:
		return &UnusableError{
			fmt.Sprintf("every user of this machine may change %s (mode %04o)", path, mode.Perm()),
			"remove it, or run chmod o-w on it if you know that the content is right",
		}
	}
	return allowed(path, info)
}

// otherOwner returns the owner of a file, and whether that is another user than uid and
// root.
func otherOwner(info fs.FileInfo, uid int) (owner int, others bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	owner = int(stat.Uid)
	return owner, owner != 0 && owner != uid
}

// allowed returns an error if this process may not read and write a file or directory.
func allowed(path string, info fs.FileInfo) error {
	const execute, write, read = 1, 2, 4 // of access(2)
	mode := uint32(read | write)
	if info.IsDir() {
		mode |= execute
	}
	if err := syscall.Access(path, mode); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &UnusableError{
			fmt.Sprintf("this user cannot read and write %s (%v)", path, err),
			"make this user its owner, or set data.dir to another directory",
		}
	}
	return nil
}

// CloseDataDir takes the rights of other users away from everything that instances store
// in data.dir, also from what earlier versions stored there. The files that the embedded
// broker creates later are in a directory that only this user may enter.
func CloseDataDir(cfg config.Config) error {
	var failed error
	for _, name := range dataFiles {
		failed = errors.Join(failed, closePath(filepath.Join(cfg.Data.Dir, name), fileMode))
	}
	kafka := BrokerDir(cfg)
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

// CheckClosed returns an error that says that other users may enter or list dir, or nil.
func CheckClosed(dir string) error {
	stat, err := os.Stat(dir)
	if err != nil || stat.Mode().Perm()&openBits == 0 {
		return nil //nolint:nilerr // a missing directory is open to nobody
	}
	return fmt.Errorf("data.dir %s is open to other users of this machine (mode %04o): run chmod 700 on it", dir, stat.Mode().Perm())
}
