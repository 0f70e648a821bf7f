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

// peaks holds the highest values of a run.
type peaks struct {
	memory  int64 // resident memory of this process, in bytes
	entries int64 // entries in the promotion's stream
}

// watchPeaks samples until ctx ends and returns the peaks.
func watchPeaks(ctx context.Context, q queue.Queue, id reward.PromotionID) (res peaks) {
	for {
		if info, err := q.Info(ctx, queue.Stream{Type: reward.Point, PromotionID: id}); err == nil {
			res.entries = max(res.entries, info.Len)
		}
		res.memory = max(res.memory, residentBytes())
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return res
		}
	}
}

// residentBytes returns the resident memory of this process, or 0 on systems
// without /proc.
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
