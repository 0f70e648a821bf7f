package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// ErrInUse means that another process holds a lock or lease that must be exclusive.
var ErrInUse = errors.New("in use by another process")

// lockName is the lock file in a data directory. The instance that holds the lock
// writes its name into it.
const lockName = "lock"

// dirLock is the exclusive lock of a data directory. The kernel releases it when the
// process ends, even after a crash.
type dirLock struct{ file *os.File }

// lockDir creates the directory and locks it. If another process holds the lock, it
// returns ErrInUse with the name of the holder.
func lockDir(dir, instance string) (*dirLock, error) {
	if err := makeDataDir(dir); err != nil {
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
	return &dirLock{file}, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func (l *dirLock) release() { unlock(l.file) }

// unlock releases a lock of a file and closes it. Closing alone is not enough: a child
// process that is being started has the file open, too, until it executes its program.
func unlock(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
	_ = file.Close()
}

const (
	leaseTTL           = 15 * time.Second
	leaseRenewInterval = leaseTTL / 3
)

// lease is the exclusive ownership of a name in the database. It expires if it is not
// renewed.
type lease struct {
	service.Base
	rows  store.Leases
	name  string
	owner string
	lost  func(error)
	log   obs.Log
}

// takeLease takes the lease of a name, or returns ErrInUse with the name of its
// holder. It renews the lease in the background, and calls lost if another
// instance took it.
func takeLease(ctx context.Context, rows store.Leases, name, instance string, lost func(error), log obs.Log) (*lease, error) {
	l := &lease{rows: rows, name: name, owner: instance + "/" + rand.Text()[:8], lost: lost, log: log.For(obs.Engine)}
	got, err := rows.LeaseTake(ctx, store.LeaseTakeParams{Name: name, Owner: l.owner, TTL: leaseTTL})
	if err != nil {
		return nil, fmt.Errorf("taking the lease %q failed: %w", name, err)
	}
	if !got.OK {
		holder, _, _ := strings.Cut(got.Owner, "/")
		return nil, fmt.Errorf("the lease %q is %w: %s holds it until %s", name, ErrInUse, holder, got.Until.UTC().Format(time.RFC3339))
	}
	l.Start(context.WithoutCancel(ctx), l.renew)
	return l, nil
}

// takeAbandonedLease is like takeLease, for a lease that a killed process may have
// left behind. It waits until the lease of a dead holder would have expired, and
// returns ErrInUse if the holder has renewed it.
func takeAbandonedLease(ctx context.Context, rows store.Leases, name, instance string, lost func(error), log obs.Log) (*lease, error) {
	deadline := time.Now().Add(leaseTTL + time.Second)
	for {
		l, err := takeLease(ctx, rows, name, instance, lost, log)
		if err == nil || !errors.Is(err, ErrInUse) || time.Now().After(deadline) {
			return l, err
		}
		log.For(obs.Engine).Warn("taking lease failed", err, "lease", name)
		if !service.Sleep(ctx, time.Second) {
			return nil, err
		}
	}
}

func (l *lease) renew(ctx context.Context) {
	for service.Sleep(ctx, leaseRenewInterval) {
		got, err := l.rows.LeaseTake(ctx, store.LeaseTakeParams{Name: l.name, Owner: l.owner, TTL: leaseTTL})
		switch {
		case err == nil && got.OK:
		case err == nil:
			l.lost(fmt.Errorf("the lease %q is %w: %s took it", l.name, ErrInUse, got.Owner))
			return
		case ctx.Err() != nil:
			return
		default:
			// During an outage of the database, no other instance can take it
			// either. The first attempt after that decides.
			l.log.Warn("renewing lease failed", err, "lease", l.name)
		}
	}
}

func (l *lease) release() {
	l.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := l.rows.LeaseRelease(ctx, l.name, l.owner); err != nil {
		l.log.Warn("releasing lease failed", err, "lease", l.name)
	}
}
