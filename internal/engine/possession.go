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

// ErrInUse says that another process has what this one would need to have
// alone.
var ErrInUse = errors.New("in use by another process")

// lockName is the file of a data folder that its holder locks and signs.
const lockName = "lock"

// dirLock is the sole possession of a data folder. The kernel ends it with the
// process, however that ends.
type dirLock struct{ file *os.File }

// lockDir makes the folder and takes it, or says who has it.
func lockDir(dir, instance string) (*dirLock, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make data.dir: %w", err)
	}
	path := filepath.Join(dir, lockName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640) //nolint:gosec // the path is the operator's own setting
	if err != nil {
		return nil, fmt.Errorf("open the lock of data.dir: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(file, 256))
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("data.dir %s is %w: %s holds it; stop that one, or give this one a data.dir of its own",
				dir, ErrInUse, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock data.dir %s: %w", dir, err)
	}
	line := fmt.Sprintf("%s (since %s)\n", instance, time.Now().UTC().Format(time.RFC3339))
	if err := errors.Join(file.Truncate(0), writeAt(file, line)); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("write the lock of data.dir: %w", err)
	}
	return &dirLock{file}, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func (l *dirLock) release() { _ = l.file.Close() }

const (
	leaseTTL   = 15 * time.Second
	leaseRenew = leaseTTL / 3
)

// lease is a name held in the database for as long as it is renewed.
type lease struct {
	service.Base
	rows  store.Leases
	name  string
	owner string
	lost  func(error)
	log   obs.Log
}

// takeLease takes a name, or fails with ErrInUse and its holder. lost is
// called when the lease could not be renewed in time.
func takeLease(ctx context.Context, rows store.Leases, name, instance string, lost func(error), log obs.Log) (*lease, error) {
	l := &lease{rows: rows, name: name, owner: instance + "/" + rand.Text()[:8], lost: lost, log: log.For(obs.Engine)}
	got, err := rows.LeaseTake(ctx, store.LeaseTakeParams{Name: name, Owner: l.owner, TTL: leaseTTL})
	if err != nil {
		return nil, fmt.Errorf("take the lease %q: %w", name, err)
	}
	if !got.OK {
		holder, _, _ := strings.Cut(got.Owner, "/")
		return nil, fmt.Errorf("the lease %q is %w: %s holds it until %s", name, ErrInUse, holder, got.Until.UTC().Format(time.RFC3339))
	}
	l.Start(context.WithoutCancel(ctx), l.renew)
	return l, nil
}

// takeAbandonedLease is takeLease for a name that a process may have left
// behind when it was killed: it waits for as long as a dead holder's lease
// lasts, and fails once a living holder has renewed it.
func takeAbandonedLease(ctx context.Context, rows store.Leases, name, instance string, lost func(error), log obs.Log) (*lease, error) {
	deadline := time.Now().Add(leaseTTL + time.Second)
	for {
		l, err := takeLease(ctx, rows, name, instance, lost, log)
		if err == nil || !errors.Is(err, ErrInUse) || time.Now().After(deadline) {
			return l, err
		}
		log.For(obs.Engine).Warn(obs.Unavailable, err, "lease", name)
		if !service.Sleep(ctx, time.Second) {
			return nil, err
		}
	}
}

func (l *lease) renew(ctx context.Context) {
	for service.Sleep(ctx, leaseRenew) {
		got, err := l.rows.LeaseTake(ctx, store.LeaseTakeParams{Name: l.name, Owner: l.owner, TTL: leaseTTL})
		switch {
		case err == nil && got.OK:
		case err == nil:
			l.lost(fmt.Errorf("the lease %q is %w: %s took it", l.name, ErrInUse, got.Owner))
			return
		case ctx.Err() != nil:
			return
		default:
			// Nobody else can take it either while the database is away; once
			// it is back the next try tells.
			l.log.Warn(obs.Unavailable, err, "lease", l.name)
		}
	}
}

func (l *lease) release() {
	l.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := l.rows.LeaseRelease(ctx, l.name, l.owner); err != nil {
		l.log.Warn(obs.CleanupFailed, err, "lease", l.name)
	}
}
