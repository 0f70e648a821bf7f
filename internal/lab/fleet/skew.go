package fleet

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// skewSource is a library in C that shifts the wall clock of a process. Its name
// does not end in .c, because this package does not use cgo.
//
//go:embed skew.c.txt
var skewSource []byte

// NewSkewedRedis finds a Redis and a C compiler, and returns a server like that
// of NewRedis whose wall clock Skew shifts.
func NewSkewedRedis(ctx context.Context, in Installer) (*Server, error) {
	binary, err := in.findRedis(ctx)
	if err != nil {
		return nil, fmt.Errorf("find Redis: %w", err)
	}
	if err := in.findCompiler(ctx); err != nil {
		return nil, err
	}
	s := redisServer("redis-skewed", binary)
	s.prepare = prepareSkew
	s.command = func(at place) (*exec.Cmd, error) {
		cmd := redisCommand(binary, at)
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(at.dir, "skew.so"), "LARGESSE_SKEW="+skewPath(at))
		return cmd, nil
	}
	return s, nil
}

// Skew sets how far the wall clock of a server of NewSkewedRedis is ahead of the
// clock of this machine. The server must have been started once.
func (s *Server) Skew(ahead time.Duration) error { return writeSkew(s.at, ahead) }

func skewPath(at place) string { return filepath.Join(at.dir, "skew") }

func prepareSkew(ctx context.Context, at place) error {
	if err := compile(ctx, at, "skew", skewSource); err != nil {
		return err
	}
	return writeSkew(at, 0)
}

// compile makes name.so of a source in C, for LD_PRELOAD.
func compile(ctx context.Context, at place, name string, text []byte) error {
	source := filepath.Join(at.dir, name+".c")
	if err := os.WriteFile(source, text, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", source, err)
	}
	out, err := Output(ctx, at.dir, nil, "gcc", "-shared", "-fPIC", "-O2", "-o", name+".so", source)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, Tail(out, 20))
	}
	return nil
}

// writeSkew changes the file in place: the server maps it.
func writeSkew(at place, ahead time.Duration) error {
	f, err := os.OpenFile(skewPath(at), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("shift a clock: %w", err)
	}
	defer f.Close()
	if err := binary.Write(f, binary.NativeEndian, ahead.Microseconds()); err != nil {
		return fmt.Errorf("shift a clock: %w", err)
	}
	return nil
}
