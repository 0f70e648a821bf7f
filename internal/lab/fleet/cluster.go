package fleet

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	clusterNodes = 3
	clusterSlots = 16384
	// clusterNodeTimeout is after how long a node that does not answer counts
	// as away.
	clusterNodeTimeout = 3 * time.Second
)

// Cluster is a Redis Cluster of three nodes without replicas, each with a
// third of the slots. A node that is away takes its slots along; some seconds
// later the others refuse all work until it is back. A Cluster is used by one
// goroutine at a time.
type Cluster struct {
	nodes  []*Server
	joined bool
}

// NewRedisCluster finds a Redis and makes a Cluster of it that keeps nothing
// on disk but who belongs to it: a node comes back empty, with its slots.
func NewRedisCluster(ctx context.Context, in Installer) (*Cluster, error) {
	binary, err := in.findRedis(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding Redis: %w", err)
	}
	c := &Cluster{}
	for i := range clusterNodes {
		c.nodes = append(c.nodes, clusterNode(fmt.Sprintf("redis-cluster-%d", i+1), binary))
	}
	return c, nil
}

// clusterNode describes a node; its second port is for the other nodes.
func clusterNode(name, binary string) *Server {
	return &Server{
		name: name, ports: 2, farewell: syscall.SIGTERM, address: redisAddress, answers: redisAnswers,
		command: func(at place) (*exec.Cmd, error) {
			return redisCommand(binary, at,
				"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(at.ports[1]), "--cluster-announce-ip", "127.0.0.1",
				"--cluster-node-timeout", strconv.FormatInt(clusterNodeTimeout.Milliseconds(), 10)), nil
		},
	}
}

// Name is redis-cluster.
func (c *Cluster) Name() string { return "redis-cluster" }

// Address names all nodes, as redis.url wants it:
// redis://127.0.0.1:a,redis://127.0.0.1:b,redis://127.0.0.1:c.
func (c *Cluster) Address() string {
	all := make([]string, 0, len(c.nodes))
	for _, n := range c.nodes {
		all = append(all, n.Address())
	}
	return strings.Join(all, ",")
}

// Nodes are the three servers, to be stopped, killed and started one by one.
// Such a start is over when the node answers; WaitOK waits for the whole.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Start starts all nodes and waits until the Cluster works. On an error none
// is running.
func (c *Cluster) Start(ctx context.Context) error {
	if err := c.launch(ctx); err != nil {
		return errors.Join(err, c.Kill())
	}
	return c.await(ctx)
}

// Restart stops all nodes gently and starts them on the same ports; what was
// in them is gone.
func (c *Cluster) Restart(ctx context.Context) error {
	if err := c.Stop(); err != nil {
		return err
	}
	return c.Start(ctx)
}

// Stop asks all nodes to end and returns once they have.
func (c *Cluster) Stop() error { return c.each((*Server).Stop) }

// Kill ends all nodes at once.
func (c *Cluster) Kill() error { return c.each((*Server).Kill) }

// Remove stops all nodes and forgets the Cluster.
func (c *Cluster) Remove() error {
	c.joined = false
	return c.each((*Server).Remove)
}

func (c *Cluster) each(do func(*Server) error) error {
	var all error
	for _, n := range c.nodes {
		all = errors.Join(all, do(n))
	}
	return all
}

func (c *Cluster) launch(ctx context.Context) error {
	return c.each(func(n *Server) error { return n.launch(ctx) })
}

func (c *Cluster) await(ctx context.Context) error {
	err := c.each(func(n *Server) error { return n.await(ctx) })
	if err == nil && !c.joined {
		err = c.join(ctx)
	}
	if err == nil {
		c.joined = true
		err = c.WaitOK(ctx)
	}
	if err != nil {
		return errors.Join(err, c.Kill())
	}
	return nil
}

// join gives each node its slots and makes them known to each other.
func (c *Cluster) join(ctx context.Context) error {
	first := c.nodes[0].at
	for i, n := range c.nodes {
		from, to := i*clusterSlots/clusterNodes, (i+1)*clusterSlots/clusterNodes-1
		port := n.at.ports[0]
		// Nodes with the same epoch would argue about who is right.
		_, errEpoch := ask(ctx, port, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		_, errSlots := ask(ctx, port, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(from), strconv.Itoa(to))
		if err := errors.Join(errEpoch, errSlots); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		_, err := ask(ctx, port, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(first.ports[0]), strconv.Itoa(first.ports[1]))
		if err != nil {
			return err
		}
	}
	return nil
}

// WaitOK waits until every node knows all of them and serves.
func (c *Cluster) WaitOK(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		err := c.each(func(n *Server) error { return clusterOK(ctx, n.at.ports[0]) })
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not whole within %s: %w", c.Name(), readyWithin, err)
		case <-time.After(answerPause):
		}
	}
}

func clusterOK(ctx context.Context, port int) error {
	info, err := ask(ctx, port, "CLUSTER", "INFO")
	if err != nil {
		return err
	}
	for name, want := range map[string]string{
		"cluster_state":          "ok",
		"cluster_slots_ok":       strconv.Itoa(clusterSlots),
		"cluster_known_nodes":    strconv.Itoa(clusterNodes),
		"cluster_size":           strconv.Itoa(clusterNodes), // masters with slots
		"cluster_slots_assigned": strconv.Itoa(clusterSlots),
	} {
		if got := valueOf(info, name); got != want {
			return fmt.Errorf("the node at port %d says %s:%s, want %s", port, name, got, want)
		}
	}
	return nil
}

func (c *Cluster) endings() []string {
	var all []string
	for _, n := range c.nodes {
		for _, text := range n.endings() {
			all = append(all, n.Name()+": "+text)
		}
	}
	return all
}
