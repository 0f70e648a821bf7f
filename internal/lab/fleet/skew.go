package fleet

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"time"
)

// skewSource is a library in C that shifts the wall clock of a process. Its name
// does not end in .c, because this package does not use cgo.
//
//go:embed skew.c.txt
var skewSource []byte

var skew = preload{name: "skew", source: skewSource, variable: "LARGESSE_SKEW", idle: skewState(0)}

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
	skew.into(s)
	return s, nil
}

// Skew sets how far the wall clock of a server of NewSkewedRedis is ahead of the
// clock of this machine. The server must have been started once.
func (s *Server) Skew(ahead time.Duration) error { return skew.set(s.at, skewState(ahead)) }

func skewState(ahead time.Duration) []byte {
	return binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())) //nolint:gosec // two's complement, as the library reads it
}
