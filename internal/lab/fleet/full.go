package fleet

import (
	"context"
	_ "embed"
)

// fullSource is a library in C that makes the disk of a process full. Its name does
// not end in .c, because this package does not use cgo.
//
//go:embed full.c.txt
var fullSource []byte

var full = preload{name: "full", source: fullSource, variable: "LARGESSE_FULL", idle: []byte{0}}

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
	s.name = "postgres-full"
	full.into(s)
	return s, nil
}

// Fill makes the disk of a server of NewFullPostgres full, or gives it space again.
// A full disk refuses what makes a file longer, as ENOSPC. The server must have been
// started once.
func (s *Server) Fill(isFull bool) error {
	if isFull {
		return full.set(s.at, []byte{1})
	}
	return full.set(s.at, full.idle)
}
