// Package fleet runs real servers on loopback for tests: it finds or installs
// them, starts, stops, kills and restarts them. `make test` starts one of each
// for all suites (Start); a test that breaks servers starts its own (NewRedis,
// NewPostgres, …).
//
// Guarantees:
//   - A server keeps its ports and its directory until it is removed, so that
//     clients find it again after a restart.
//   - Ports are outside the range of outgoing connections, so that no client of
//     a stopped server gets its port.
//   - Every process is a child with its own process group. It is ended by its
//     own ID, and dies with this process.
//   - The data is in temporary directories, which Remove deletes.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Variable is the environment variable from which tests read the address of a
// server.
type Variable string

// The variables, one per server of a Fleet.
const (
	VariableKafka        Variable = "LARGESSE_TEST_KAFKA"
	VariablePostgres     Variable = "LARGESSE_TEST_POSTGRES"
	VariableRedis        Variable = "LARGESSE_TEST_REDIS"
	VariableValkey       Variable = "LARGESSE_TEST_VALKEY"
	VariableRedisCluster Variable = "LARGESSE_TEST_REDIS_CLUSTER"
)

// member is a server, or several servers that act as one.
type member interface {
	Name() string
	Address() string
	Remove() error
	launch(ctx context.Context) error
	await(ctx context.Context) error
	// endings describes each process that exited unexpectedly, with the end of
	// its log.
	endings() []string
}

// Fleet is one running server of each kind.
type Fleet struct {
	members   []member
	variables []Variable
}

// Start finds or installs all servers, starts one of each kind, and waits until
// all of them respond. It prints its progress to out. After an error no server
// runs.
func Start(ctx context.Context, in Installer, out io.Writer) (*Fleet, error) {
	f := &Fleet{}
	if err := f.start(ctx, in, out); err != nil {
		return nil, errors.Join(err, f.Remove())
	}
	return f, nil
}

func (f *Fleet) start(ctx context.Context, in Installer, out io.Writer) error {
	if err := in.findCompiler(ctx); err != nil {
		return err
	}
	// Install everything before the first start. Start Kafka first, because it
	// takes longest.
	kafka, errKafka := NewKafka(ctx, in)
	postgres, errPostgres := NewPostgres(ctx, in)
	redis, errRedis := NewRedis(ctx, in)
	valkey, errValkey := NewValkey(ctx, in)
	cluster, errCluster := NewRedisCluster(ctx, in)
	if err := errors.Join(errKafka, errPostgres, errRedis, errValkey, errCluster); err != nil {
		return err
	}
	started := time.Now()
	for _, one := range []struct {
		member   member
		variable Variable
	}{
		{kafka, VariableKafka},
		{postgres, VariablePostgres},
		{redis, VariableRedis},
		{valkey, VariableValkey},
		{cluster, VariableRedisCluster},
	} {
		f.members, f.variables = append(f.members, one.member), append(f.variables, one.variable)
		if err := one.member.launch(ctx); err != nil {
			return err
		}
	}
	for _, m := range f.members {
		if err := m.await(ctx); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is ready at %s\n", m.Name(), m.Address())
	}
	fmt.Fprintf(out, "servers started in %.1f s\n", time.Since(started).Seconds())
	return nil
}

// Env returns the addresses as NAME=value.
func (f *Fleet) Env() []string {
	env := make([]string, 0, len(f.members))
	for i, m := range f.members {
		env = append(env, string(f.variables[i])+"="+m.Address())
	}
	return env
}

// Endings describes the servers that exited unexpectedly, with the end of their
// logs, by name.
func (f *Fleet) Endings() map[string][]string {
	all := map[string][]string{}
	for _, m := range f.members {
		if found := m.endings(); len(found) > 0 {
			all[m.Name()] = found
		}
	}
	return all
}

// Remove stops every server and removes its data.
func (f *Fleet) Remove() error {
	errs := make([]error, len(f.members))
	var wg sync.WaitGroup
	for i, m := range f.members {
		wg.Go(func() { errs[i] = m.Remove() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
