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
	// clusterNodeTimeout is the time without a response after which a node
	// counts as failed.
	clusterNodeTimeout = 3 * time.Second
)

// Cluster is a Redis Cluster of three nodes without replicas, each with a third
// of the slots. The slots of a stopped node are unavailable; some seconds later
// the other nodes refuse all commands until it is back. A Cluster is not safe
// for concurrent use.
type Cluster struct {
	nodes  []*Server
	joined bool
}

// NewRedisCluster finds a Redis and returns a Cluster that stores only its node
// configuration on disk: a restarted node has its slots but no data.
func NewRedisCluster(ctx context.Context, in Installer) (*Cluster, error) {
	binary, err := in.findRedis(ctx)
	if err != nil {
		return nil, fmt.Errorf("find Redis: %w", err)
	}
	c := &Cluster{}
	for i := range clusterNodes {
		c.nodes = append(c.nodes, clusterNode(fmt.Sprintf("redis-cluster-%d", i+1), binary))
	}
	return c, nil
}

// clusterNode returns a node. Its second port is for the other nodes.
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

// Name returns redis-cluster.
func (c *Cluster) Name() string { return "redis-cluster" }

// Address returns the URLs of all nodes, as the setting redis.url expects them:
// redis://127.0.0.1:a,redis://127.0.0.1:b,redis://127.0.0.1:c.
func (c *Cluster) Address() string {
	all := make([]string, 0, len(c.nodes))
	for _, n := range c.nodes {
		all = append(all, n.Address())
	}
	return strings.Join(all, ",")
}

// Nodes returns the three servers, which tests may stop, kill and start one by
// one. Starting a node waits only for the node; WaitOK waits for the cluster.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Start starts all nodes and waits until the Cluster serves. After an error no
// node runs.
func (c *Cluster) Start(ctx context.Context) error {
	if err := c.launch(ctx); err != nil {
		return errors.Join(err, c.Kill())
	}
	return c.await(ctx)
}

// Kill kills all nodes.
func (c *Cluster) Kill() error { return c.each((*Server).Kill) }

// Remove stops all nodes and removes their data.
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

// join assigns the slots to the nodes and introduces the nodes to each other.
func (c *Cluster) join(ctx context.Context) error {
	first := c.nodes[0].at
	for i, n := range c.nodes {
		from, to := i*clusterSlots/clusterNodes, (i+1)*clusterSlots/clusterNodes-1
		port := n.at.ports[0]
		// Nodes with the same epoch would conflict.
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

// WaitOK waits until every node knows all others and serves.
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
			return fmt.Errorf("%s was not complete within %s: %w", c.Name(), readyWithin, err)
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
			return fmt.Errorf("the node at port %d reports %s:%s, want %s", port, name, got, want)
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
