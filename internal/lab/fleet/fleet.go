// Package fleet is real servers on loopback: found or installed, started,
// stopped, killed and started again. `make test` starts one of each for all
// suites (Start); a test that breaks servers starts its own (NewRedis,
// NewPostgres, …).
//
// What it holds to:
//   - A server keeps its ports and its folder for as long as it is not removed,
//     so that what is connected to it finds it again after a restart.
//   - Ports are outside the range from which the system takes those of
//     outgoing connections: no client of a server that is away gets its port.
//   - Every process is a child with a group of its own. It is ended by its own
//     id, and dies when this process does.
//   - The data is in temporary folders and goes with the server.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Variable names the environment variable in which the tests look for the
// address of a server.
type Variable string

// The variables, one for each server of a Fleet.
const (
	VariableKafka        Variable = "LARGESSE_TEST_KAFKA"
	VariablePostgres     Variable = "LARGESSE_TEST_POSTGRES"
	VariableRedis        Variable = "LARGESSE_TEST_REDIS"
	VariableValkey       Variable = "LARGESSE_TEST_VALKEY"
	VariableRedisCluster Variable = "LARGESSE_TEST_REDIS_CLUSTER"
)

// member is a server, or several that act as one.
type member interface {
	Name() string
	Address() string
	Remove() error
	launch(ctx context.Context) error
	await(ctx context.Context) error
	// endings tells each process that ended by itself, with the end of its log.
	endings() []string
}

// Fleet is one running server of each kind.
type Fleet struct {
	members   []member
	variables []Variable
}

// Start finds, or installs, everything; then it starts one server of each kind
// and waits until all of them answer. It tells out how it goes. On an error
// nothing is left running.
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
	// Everything is there before anything is started. Kafka is the first to be
	// started, as it takes longest.
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
		fmt.Fprintf(out, "%s answers at %s\n", m.Name(), m.Address())
	}
	fmt.Fprintf(out, "servers up in %.1f s\n", time.Since(started).Seconds())
	return nil
}

// Env is the addresses as NAME=value.
func (f *Fleet) Env() []string {
	env := make([]string, 0, len(f.members))
	for i, m := range f.members {
		env = append(env, string(f.variables[i])+"="+m.Address())
	}
	return env
}

// Endings tells, by the names of the servers, which ended by themselves, how,
// and the end of their logs.
func (f *Fleet) Endings() map[string][]string {
	all := map[string][]string{}
	for _, m := range f.members {
		if found := m.endings(); len(found) > 0 {
			all[m.Name()] = found
		}
	}
	return all
}

// Remove ends every server and removes its data.
func (f *Fleet) Remove() error {
	errs := make([]error, len(f.members))
	var wg sync.WaitGroup
	for i, m := range f.members {
		wg.Go(func() { errs[i] = m.Remove() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
