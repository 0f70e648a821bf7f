package store

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// Limits of the reads for viewers.
const (
	// ViewerConnections is the default number of their connections.
	ViewerConnections = 5
	// ViewerWait limits the wait for a free one.
	ViewerWait = 2 * time.Second
	// ViewerTimeout limits the duration of a read.
	ViewerTimeout = 5 * time.Second
)

type viewerKey struct{}

// ForViewer returns a context for reads whose result is only shown. A driver
// runs them on connections of their own, which payouts never need, and refuses
// them with CodeUnavailable when no connection is free within ViewerWait or when
// they last longer than ViewerTimeout. A read whose caller has left runs to its
// end all the same, so that the number of reads never exceeds the number of
// connections.
//
// Methods that write ignore the mark. A read sees the writes that ended before it.
func ForViewer(ctx context.Context) context.Context { return context.WithValue(ctx, viewerKey{}, true) }

// IsForViewer reports whether ctx comes from ForViewer.
func IsForViewer(ctx context.Context) bool { return ctx.Value(viewerKey{}) != nil }

// ViewersBusy returns the error of a read that found no free connection.
func ViewersBusy(err error) error {
	return &reward.Error{Kind: reward.KindUnavailable, Code: reward.CodeUnavailable, Detail: fmt.Sprintf(
		"no database connection for reads was free within %v; send fewer reads at a time, or raise database.read-connections", ViewerWait), Err: err}
}

// ViewerTimedOut returns the error of a read that was too slow.
func ViewerTimedOut(err error) error {
	return &reward.Error{Kind: reward.KindUnavailable, Code: reward.CodeUnavailable, Detail: fmt.Sprintf(
		"the database did not answer this read within %v; try again, or with a smaller limit or another filter", ViewerTimeout), Err: err}
}
