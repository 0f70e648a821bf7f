package lab

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// Peaks are the highest figures of a run.
type Peaks struct {
	Memory  int64 // of this process, resident, in bytes
	Entries int64 // in the promotion's stream
}

// WatchPeaks samples until ctx ends.
func WatchPeaks(ctx context.Context, q queue.Queue, id reward.PromotionID) (res Peaks) {
	for {
		if info, err := q.Info(ctx, queue.Stream{Type: reward.Point, PromotionID: id}); err == nil {
			res.Entries = max(res.Entries, info.Len)
		}
		res.Memory = max(res.Memory, residentBytes())
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return res
		}
	}
}

// residentBytes reads this process's resident memory from the kernel; 0 where
// there is no /proc.
func residentBytes() int64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(raw)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
