package parts

import (
	"syscall"

	"github.com/largesse/largesse/internal/config"
)

// filesAside is the number of open files reserved for Redis, Kafka, SQLite and logs:
// everything except connections to callers, the provider and the database.
const filesAside = 500

// OpenFilesMax returns the limit of open files of this process. Go has already raised
// it to the hard limit.
func OpenFilesMax() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1 << 20 // unknown: no limit
	}
	return int(min(limit.Cur, 1<<30))
}

// APIConnections returns the maximum number of connections to the API:
// http.max-connections, reduced so that the limit of open files leaves enough for
// everything else. Otherwise, callers could use up the files that the instance
// needs to reach its servers.
func APIConnections(cfg config.Config, files int) int {
	left := files - cfg.Money.MaxConcurrency - cfg.Database.MaxConnections - cfg.Database.ReadConnections - filesAside
	return min(cfg.HTTP.MaxConnections, max(left, apiConnectionsMin))
}

const apiConnectionsMin = 10
