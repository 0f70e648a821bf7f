package store

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// shareRanges is the number of ranges into which promotions are hashed. It is
// fixed, so that all instances divide them in the same way.
const shareRanges = 256

const (
	// shareTTL is how long an instance keeps its part after it has renewed its
	// lease, and how long it stays away after it was not able to do the work.
	shareTTL = 15 * time.Second
	// ablePause separates checks whether an instance is able to begin.
	ablePause = 500 * time.Millisecond
)

// Share is the part of the promotions that this instance works on, so that many
// instances divide a work that any of them could do.
//
// Each instance holds a lease under its own name. A hash of range and name gives
// each range of promotions to one of the instances that hold a lease. If an
// instance joins or ends, only the ranges that it gets or had change hands. If it
// crashes, the others have its ranges within 4/3 of shareTTL.
//
// For a moment two instances may have the same range, or none may have it: they
// read the leases at different times. So the work must be harmless if two do it,
// and must not depend on what this instance did before.
type Share struct {
	service.Base
	rows     Leases
	work     string
	instance string
	able     func() bool
	log      obs.Log
	part     atomic.Pointer[part]
}

// part is the ranges that an instance has until a time.
type part struct {
	mine    [shareRanges]bool
	until   time.Time
	holders []string
}

// NewShare returns a Share that has no promotion before Run. Instances that name
// the same work divide it. No two of them may have the same name. While able
// reports false, this instance leaves its part to the others.
func NewShare(rows Leases, work, instance string, able func() bool, log obs.Log) *Share {
	return &Share{rows: rows, work: work + " ", instance: instance, able: able, log: log}
}

// Owns reports whether this instance works on a promotion now.
func (s *Share) Owns(id reward.PromotionID) bool {
	p := s.part.Load()
	return p != nil && p.mine[rangeOf(id)] && time.Now().Before(p.until)
}

// Run takes part in the work until ctx ends, and then leaves its promotions to
// the others. If this instance stops being able to do the work, it stays away for
// shareTTL, so that every other instance notices.
func (s *Share) Run(ctx context.Context) {
	report := s.log.Streak("lease unavailable", "lease available again")
	for ctx.Err() == nil {
		switch {
		case s.able():
			err := s.renew(ctx)
			if ctx.Err() == nil {
				report(err, "lease", s.work+s.instance)
			}
			service.Sleep(ctx, service.Jitter(shareTTL/3, 0.2))
		case s.part.Load() != nil:
			s.log.Warn("work left to others", errNotAble, "work", s.work+s.instance)
			s.leave(ctx)
			service.Sleep(ctx, shareTTL)
		default:
			service.Sleep(ctx, ablePause)
		}
	}
	s.leave(context.WithoutCancel(ctx))
}

// errNotAble is the reason why an instance leaves its part to the others.
var errNotAble = errors.New("this instance cannot do it now: it cannot read the promotions, or no step succeeds")

// leave gives up the part and releases the lease. If the release fails, the lease
// expires.
func (s *Share) leave(ctx context.Context) {
	if s.part.Swap(nil) == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseCallTimeout)
	defer cancel()
	if err := s.rows.LeaseRelease(ctx, s.work+s.instance, s.instance); err != nil {
		s.log.Warn("releasing lease failed", err, "lease", s.work+s.instance)
	}
}

// renew renews the lease, and takes the ranges that the leases of all instances
// give to this one. A failed renewal changes nothing: the ranges stay until
// shareTTL has passed since the last good one began.
func (s *Share) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaseCallTimeout)
	defer cancel()
	takenAt := time.Now()
	l, err := s.rows.LeaseTake(ctx, LeaseTakeParams{Name: s.work + s.instance, Owner: s.instance, TTL: shareTTL, Among: s.work})
	if err != nil {
		return err
	}
	next := &part{until: takenAt.Add(shareTTL), holders: l.Holders}
	if before := s.part.Load(); before != nil && slices.Equal(before.holders, l.Holders) {
		next.mine = before.mine
		s.part.Store(next)
		return nil
	}
	ranges := 0
	for i := range next.mine {
		if next.mine[i] = Holder(uint64(i), l.Holders) == s.instance; next.mine[i] {
			ranges++
		}
	}
	s.part.Store(next)
	s.log.Info("work divided", "work", s.work+s.instance, "instances", len(l.Holders), "ranges", ranges)
	return nil
}

// rangeOf returns the range of a promotion. It mixes the bits of the ID, so that
// IDs in sequence, or with a common factor, spread over all ranges.
func rangeOf(id reward.PromotionID) int { return int(mixed(uint64(id)) % shareRanges) } //nolint:gosec // any bits do
