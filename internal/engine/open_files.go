package engine

import (
	"syscall"

	"github.com/largesse/largesse/internal/config"
)

// filesAside is how many files an instance may have open besides connections
// to callers, the provider and the database: Redis, Kafka, SQLite, logs.
const filesAside = 500

// openFilesMax is how many files this process may have open; Go has raised it
// as far as it may.
func openFilesMax() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1 << 20 // it cannot be told, so it bounds nothing
	}
	return int(min(limit.Cur, 1<<30))
}

// apiConnections is how many connections the API may have open: what is set, as
// far as a process with so many files leaves room for everything else. Without
// that callers could keep an instance from its own servers.
func apiConnections(cfg config.Config, files int) int {
	room := files - cfg.Money.MaxConcurrency - cfg.Database.MaxConnections - filesAside
	return min(cfg.HTTP.MaxConnections, max(room, apiConnectionsLeast))
}

// apiConnectionsLeast is what the API has however few files there may be.
const apiConnectionsLeast = 10
