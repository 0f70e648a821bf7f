package fleet

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// fullSource is a library in C that makes the disk of a process full. Its name does
// not end in .c, because this package does not use cgo.
//
//go:embed full.c.txt
var fullSource []byte

// NewFullPostgres finds a PostgreSQL and a C compiler, and returns a server like
// that of NewPostgres whose disk Fill makes full.
func NewFullPostgres(ctx context.Context, in Installer) (*Server, error) {
	s, err := NewPostgres(ctx, in)
	if err != nil {
		return nil, err
	}
	if err := in.findCompiler(ctx); err != nil {
		return nil, err
	}
	plain, command := s.prepare, s.command
	s.name = "postgres-full"
	s.prepare = func(ctx context.Context, at place) error {
		if err := plain(ctx, at); err != nil {
			return err
		}
		if err := compile(ctx, at, "full", fullSource); err != nil {
			return err
		}
		return writeFull(at, false)
	}
	s.command = func(at place) (*exec.Cmd, error) {
		cmd, err := command(at)
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(at.dir, "full.so"), "LARGESSE_FULL="+fullPath(at))
		return cmd, nil
	}
	return s, nil
}

// Fill makes the disk of a server of NewFullPostgres full, or gives it space again.
// A full disk refuses what makes a file longer, as ENOSPC. The server must have been
// started once.
func (s *Server) Fill(full bool) error { return writeFull(s.at, full) }

func fullPath(at place) string { return filepath.Join(at.dir, "full") }

// writeFull changes the file in place: the processes of the server map it.
func writeFull(at place, full bool) error {
	state := []byte{0}
	if full {
		state[0] = 1
	}
	f, err := os.OpenFile(fullPath(at), os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // the server runs as another user
	if err != nil {
		return fmt.Errorf("fill a disk: %w", err)
	}
	defer f.Close()
	if _, err := f.Write(state); err != nil {
		return fmt.Errorf("fill a disk: %w", err)
	}
	return nil
}
