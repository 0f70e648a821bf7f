package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/redis/rueidis"
)

// Ping returns an error if the servers are unavailable. In a Cluster, every
// node that owns slots must answer and serve.
func (c *Client) Ping(ctx context.Context) error {
	if c.Mode() == rueidis.ClientModeCluster {
		return c.pingCluster(ctx)
	}
	if err := c.Do(ctx, c.B().Ping().Build()).Error(); err != nil {
		return fmt.Errorf("PING: %w", err)
	}
	return nil
}

// pingCluster asks all nodes at once. The available nodes know which nodes own
// slots: an unavailable replica owns none and does not matter.
func (c *Client) pingCluster(ctx context.Context) error {
	nodes := c.Nodes()
	if len(nodes) == 0 {
		return fmt.Errorf("CLUSTER INFO: %w", rueidis.ErrClosing)
	}
	unwell := map[string]error{}
	var mu sync.Mutex // protects unwell
	eachNode(nodes, func(address string, node rueidis.Client) {
		if err := nodeWell(ctx, node); err != nil {
			mu.Lock()
			defer mu.Unlock()
			unwell[address] = fmt.Errorf("CLUSTER INFO at %s: %w", address, err)
		}
	})
	if len(unwell) == 0 {
		return nil
	}
	owners := slices.Collect(maps.Keys(nodes)) // all known nodes, if no node answers
	for address, node := range nodes {
		if unwell[address] != nil {
			continue
		}
		ranges, err := slotRanges(ctx, address, node)
		if err != nil {
			return err
		}
		owners = owners[:0]
		for _, r := range ranges {
			owners = append(owners, r.owner)
		}
		break
	}
	slices.Sort(owners)
	for _, address := range owners {
		if err := unwell[address]; err != nil {
			return err
		}
	}
	return nil
}

// eachNode calls ask for all nodes at once, and waits for the calls.
func eachNode(nodes map[string]rueidis.Client, ask func(address string, node rueidis.Client)) {
	var asking sync.WaitGroup
	for address, node := range nodes {
		asking.Go(func() { ask(address, node) })
	}
	asking.Wait()
}

// nodeWell returns an error if a node of a Cluster does not answer or does not
// serve.
func nodeWell(ctx context.Context, node rueidis.Client) error {
	info, err := node.Do(ctx, node.B().ClusterInfo().Build()).ToString()
	if err != nil {
		return err
	}
	if state := InfoValue(info, "cluster_state"); state != "ok" {
		return fmt.Errorf("cluster_state is %q", state)
	}
	return nil
}

type slotRange struct {
	from, to uint16
	owner    string // address of the primary
}

func slotRanges(ctx context.Context, address string, node rueidis.Client) ([]slotRange, error) {
	rows, err := node.Do(ctx, node.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return nil, fmt.Errorf("CLUSTER SLOTS at %s: %w", address, err)
	}
	ranges := make([]slotRange, 0, len(rows))
	for _, row := range rows {
		r, err := decodeSlots(address, row)
		if err != nil {
			return nil, fmt.Errorf("CLUSTER SLOTS at %s: %w", address, err)
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// decodeSlots decodes [from, to, [host, port, …], …]. A node that does not know
// its own host is the asked one.
func decodeSlots(asked string, row rueidis.RedisMessage) (slotRange, error) {
	parts, err := row.ToArray()
	if err != nil {
		return slotRange{}, err
	}
	if len(parts) < 3 {
		return slotRange{}, fmt.Errorf("a range has %d elements", len(parts))
	}
	from, errFrom := parts[0].AsInt64()
	to, errTo := parts[1].AsInt64()
	owner, errOwner := parts[2].ToArray()
	if err := errors.Join(errFrom, errTo, errOwner); err != nil {
		return slotRange{}, err
	}
	if from < 0 || to > math.MaxUint16 || from > to {
		return slotRange{}, fmt.Errorf("a range is from %d to %d", from, to)
	}
	if len(owner) < 2 {
		return slotRange{}, fmt.Errorf("a node has %d elements", len(owner))
	}
	host := ""
	if !owner[0].IsNil() {
		if host, err = owner[0].ToString(); err != nil {
			return slotRange{}, err
		}
	}
	port, err := owner[1].AsInt64()
	if err != nil {
		return slotRange{}, err
	}
	if host == "" {
		host, _, err = net.SplitHostPort(asked)
	}
	return slotRange{uint16(from), uint16(to), net.JoinHostPort(host, strconv.FormatInt(port, 10))}, err //nolint:gosec // checked above
}
