package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/service"
)

// Clocks holds the clocks of servers, compared with this process's.
type Clocks struct {
	nodes map[string]service.Clock // by address
	slots []slotRange              // of a Cluster; nil if there is one server
}

// CompareClocks compares the clock of each server with this process's. It skips
// servers that do not answer while another one does, and the replicas of a
// Cluster, and returns an error if no server answers.
func (c *Client) CompareClocks(ctx context.Context) (Clocks, error) {
	nodes := c.Nodes()
	var mu sync.Mutex // protects out and failed
	out, failed := Clocks{nodes: make(map[string]service.Clock)}, rueidis.ErrClosing
	eachNode(nodes, func(address string, node rueidis.Client) {
		clock, err := CompareClock(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = fmt.Errorf("TIME at %s: %w", address, err)
			return
		}
		out.nodes[address] = clock
	})
	if len(out.nodes) == 0 {
		return Clocks{}, failed
	}
	if c.Mode() != rueidis.ClientModeCluster {
		return out, nil
	}
	for address := range out.nodes {
		ranges, err := slotRanges(ctx, address, nodes[address])
		if err != nil {
			return Clocks{}, err
		}
		out.slots = ranges
		break
	}
	maps.DeleteFunc(out.nodes, func(address string, _ service.Clock) bool {
		return !slices.ContainsFunc(out.slots, func(r slotRange) bool { return r.owner == address })
	})
	return out, nil
}

// CompareClock compares the clock of one server with this process's.
func CompareClock(ctx context.Context, node rueidis.Client) (service.Clock, error) {
	return service.CompareClock(func() (time.Time, error) {
		parts, err := node.Do(ctx, node.B().Time().Build()).AsIntSlice()
		if err == nil && len(parts) != 2 {
			err = errors.New("TIME did not return a time")
		}
		if err != nil {
			return time.Time{}, err
		}
		return time.Unix(parts[0], parts[1]*int64(time.Microsecond)), nil
	})
}

// Of returns the clock of the server that has a key, or a Clock that is right if
// it is unknown.
func (c Clocks) Of(key string) service.Clock {
	if c.slots == nil {
		return c.Worst()
	}
	slot := Slot(key)
	for _, r := range c.slots {
		if r.from <= slot && slot <= r.to {
			return c.nodes[r.owner]
		}
	}
	return service.Clock{}
}

// Worst returns the clock that differs most.
func (c Clocks) Worst() service.Clock {
	var worst service.Clock
	for _, clock := range c.nodes {
		if clock.Ahead.Abs() > worst.Ahead.Abs() {
			worst = clock
		}
	}
	return worst
}
