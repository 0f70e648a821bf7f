package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// ledger has the number of charges that the provider made for each target. It is a mapped
// file, so it costs next to nothing, and what is counted survives the kill of a process.
type ledger []uint32

// openLedger maps the ledger of n targets, and creates it if there is none.
func openLedger(path string, n int) (ledger, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(int64(4 * n)); err != nil {
		return nil, err
	}
	mapped, err := syscall.Mmap(int(file.Fd()), 0, 4*n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the ledger: %w", err)
	}
	return unsafe.Slice((*uint32)(unsafe.Pointer(&mapped[0])), n), nil
}

func (l ledger) close() error {
	return syscall.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(&l[0])), 4*len(l)))
}

// add counts a charge of a target and returns its number.
func (l ledger) add(target int64) uint32 { return atomic.AddUint32(&l[target-1], 1) }

// charges returns the number of charges of a target.
func (l ledger) charges(target int64) uint32 { return atomic.LoadUint32(&l[target-1]) }

// charged returns how many targets were charged.
func (l ledger) charged() (n int) {
	for i := range l {
		if atomic.LoadUint32(&l[i]) > 0 {
			n++
		}
	}
	return n
}

var errReplyLost = errors.New("the reply was lost")

// provider is what every engine pays through.
type provider struct {
	ledger       ledger
	delay        time.Duration
	losesReplies bool
}

func newProvider(j job) (*provider, error) {
	l, err := openLedger(j.ledgerFile(), j.Targets)
	return &provider{ledger: l, delay: j.Delay, losesReplies: j.LosesReplies}, err
}

// charge pays a target in the middle of its delay, and returns the key of the transaction.
// The target's ID is the idempotency key: a repeated charge returns the same key, and the
// ledger counts it.
func (p *provider) charge(ctx context.Context, target int64) (string, error) {
	if err := wait(ctx, p.delay/2); err != nil {
		return "", err
	}
	number := p.ledger.add(target)
	if err := wait(ctx, p.delay/2); err != nil {
		return "", err
	}
	if p.losesReplies && number == 1 && target%100 == 50 {
		return "", errReplyLost
	}
	return transactionKey(target), nil
}

func transactionKey(target int64) string { return "T-" + strconv.FormatInt(target, 10) }

func wait(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
