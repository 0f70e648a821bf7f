package fleet

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// preload is a library in C that the processes of a server load. The variable names a
// file that they map: while they run, a test changes it to change what the library does.
type preload struct {
	name     string
	source   []byte
	variable string
	idle     []byte // content of the file with which the library does nothing
}

// into makes a server that has not been started load the library.
func (p preload) into(s *Server) {
	prepare, command := s.prepare, s.command
	s.prepare = func(ctx context.Context, at place) error {
		if prepare != nil {
			if err := prepare(ctx, at); err != nil {
				return err
			}
		}
		if err := p.compile(ctx, at); err != nil {
			return err
		}
		return p.set(at, p.idle)
	}
	s.command = func(at place) (*exec.Cmd, error) {
		cmd, err := command(at)
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(at.dir, p.name+".so"), p.variable+"="+p.path(at))
		return cmd, nil
	}
}

func (p preload) path(at place) string { return filepath.Join(at.dir, p.name) }

func (p preload) compile(ctx context.Context, at place) error {
	source := filepath.Join(at.dir, p.name+".c")
	if err := os.WriteFile(source, p.source, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", source, err)
	}
	out, err := Output(ctx, at.dir, nil, "gcc", "-shared", "-fPIC", "-O2", "-o", p.name+".so", source)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, Tail(out, 20))
	}
	return nil
}

// set changes the file in place, because processes map it.
func (p preload) set(at place, state []byte) error {
	f, err := os.OpenFile(p.path(at), os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // a server may run as another user
	if err != nil {
		return fmt.Errorf("change %s: %w", p.name, err)
	}
	defer f.Close()
	if _, err := f.Write(state); err != nil {
		return fmt.Errorf("change %s: %w", p.name, err)
	}
	return nil
}
