package obs

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The names of the pools of database connections.
const (
	DatabaseWork  = "work"  // payouts, coupons, writes and periodic work
	DatabaseReads = "reads" // reads that are only shown (database.read-connections)
	DatabaseWrite = "write" // the one connection of SQLite that writes
)

// DatabasePool is the state of a pool of database connections.
type DatabasePool struct {
	Name             string
	InUse, Idle, Max int
	Waiting          int           // calls that wait for a connection
	Waited           time.Duration // sum of the waits that have ended
}

// DatabasePoolsFrom sets the function that returns the pools of the database at each
// scrape. It must be quick and safe for concurrent use.
func (m *Metrics) DatabasePoolsFrom(read func() []DatabasePool) {
	if !m.off() {
		m.database.read.Store(&read)
	}
}

// databaseCollector reads the pools of the database at each scrape.
type databaseCollector struct {
	inUse, idle, most, waiting, waited *prometheus.Desc
	read                               atomic.Pointer[func() []DatabasePool]
}

func newDatabaseCollector() databaseCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("largesse_database_"+name, help, []string{"pool"}, nil)
	}
	return databaseCollector{
		inUse:   desc("connections_in_use", "Database connections that a call has."),
		idle:    desc("connections_idle", "Open database connections that no call has."),
		most:    desc("connections_max", "The largest number of database connections."),
		waiting: desc("connections_waiting", "Calls that wait for a database connection."),
		waited:  desc("connection_wait_seconds_total", "Seconds that calls have waited for a database connection."),
	}
}

// Describe implements prometheus.Collector.
func (c *databaseCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.inUse
	out <- c.idle
	out <- c.most
	out <- c.waiting
	out <- c.waited
}

// Collect reads the pools.
func (c *databaseCollector) Collect(out chan<- prometheus.Metric) {
	read := c.read.Load()
	if read == nil {
		return
	}
	for _, p := range (*read)() {
		out <- prometheus.MustNewConstMetric(c.inUse, prometheus.GaugeValue, float64(p.InUse), p.Name)
		out <- prometheus.MustNewConstMetric(c.idle, prometheus.GaugeValue, float64(p.Idle), p.Name)
		out <- prometheus.MustNewConstMetric(c.most, prometheus.GaugeValue, float64(p.Max), p.Name)
		out <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(p.Waiting), p.Name)
		out <- prometheus.MustNewConstMetric(c.waited, prometheus.CounterValue, p.Waited.Seconds(), p.Name)
	}
}
