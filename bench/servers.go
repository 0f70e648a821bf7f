package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// servers are the PostgreSQL and the Redis of all turns. They must be processes of this
// machine, so that /proc has their processor time, and nobody else may use them.
type servers struct {
	postgresURL, redisURL string
	admin                 *pgx.Conn
	redis                 *redis.Client
	postmaster, redisID   int // processes
}

func openServers(ctx context.Context, postgresURL, redisURL string) (*servers, error) {
	s := &servers{postgresURL: postgresURL, redisURL: redisURL}
	var err error
	if s.admin, err = pgx.Connect(ctx, postgresURL); err != nil {
		return nil, err
	}
	options, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, err
	}
	s.redis = redis.NewClient(options)
	keys, err := s.redis.DBSize(ctx).Result()
	if err != nil {
		return nil, err
	}
	if keys > 0 {
		return nil, errors.New("this Redis has keys: bench needs an empty one, because it removes all keys after each turn")
	}
	var backend int
	if err := s.admin.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
		return nil, err
	}
	own, err := readProcess(backend)
	if err != nil {
		return nil, fmt.Errorf("find the process of PostgreSQL on this machine: %w", err)
	}
	s.postmaster = own.parent
	info, err := s.redis.InfoMap(ctx, "server").Result()
	if err != nil {
		return nil, err
	}
	s.redisID, err = strconv.Atoi(info["Server"]["process_id"])
	return s, err
}

// versions names the servers.
func (s *servers) versions(ctx context.Context) (string, error) {
	var postgres string
	if err := s.admin.QueryRow(ctx, `SHOW server_version`).Scan(&postgres); err != nil {
		return "", err
	}
	info, err := s.redis.InfoMap(ctx, "server").Result()
	postgres, _, _ = strings.Cut(postgres, " ")
	return "PostgreSQL " + postgres + ", Redis " + info["Server"]["redis_version"], err
}

func (s *servers) close(ctx context.Context) error {
	return errors.Join(s.admin.Close(ctx), s.redis.Close())
}

// newDatabase creates a database and returns its URL.
func (s *servers) newDatabase(ctx context.Context, name string) (string, error) {
	at, err := url.Parse(s.postgresURL)
	if err != nil {
		return "", err
	}
	at.Path = "/" + name
	_, err = s.admin.Exec(ctx, `CREATE DATABASE `+name)
	return at.String(), err
}

// clean removes the data of a turn.
func (s *servers) clean(ctx context.Context, database string) error {
	_, err := s.admin.Exec(ctx, `DROP DATABASE `+database+` WITH (FORCE)`)
	return errors.Join(err, s.redis.FlushAll(ctx).Err())
}

// usage is what the servers have used since their start.
type usage struct {
	postgres, redis time.Duration // processor time
	wal             int64         // bytes
	stored          int64         // bytes of the turn's database
}

func (s *servers) usage(ctx context.Context, database string) (u usage, err error) {
	if u.postgres, err = postgresTime(s.postmaster); err != nil {
		return u, err
	}
	server, err := readProcess(s.redisID)
	if err != nil {
		return u, fmt.Errorf("find the process of Redis on this machine: %w", err)
	}
	u.redis = server.own
	err = s.admin.QueryRow(ctx, `SELECT (pg_current_wal_lsn() - '0/0')::bigint, pg_database_size($1)`, database).Scan(&u.wal, &u.stored)
	return u, err
}

// process is what /proc tells about a process.
type process struct {
	parent int
	own    time.Duration // processor time
	ended  time.Duration // processor time of its children that have ended
}

func readProcess(id int) (p process, err error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(id), "stat"))
	if err != nil {
		return p, err
	}
	// The name in parentheses may contain anything. After it, the second field is the
	// parent, and the 12th to 15th are times in hundredths of a second.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	var numbers [5]int
	for i, field := range []int{1, 11, 12, 13, 14} {
		if numbers[i], err = strconv.Atoi(fields[field]); err != nil {
			return p, err
		}
	}
	const tick = 10 * time.Millisecond
	return process{numbers[0], time.Duration(numbers[1]+numbers[2]) * tick, time.Duration(numbers[3]+numbers[4]) * tick}, nil
}

// peakMemory returns the peak of the resident bytes of a process, or 0 if it has ended. (What a
// parent learns at the end of a process includes memory of the parent.)
func peakMemory(id int) float64 {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(id), "status"))
	if err != nil {
		return 0
	}
	_, line, _ := strings.Cut(string(text), "VmHWM:")
	var kilobytes float64
	_, _ = fmt.Sscan(line, &kilobytes) // a process that has ended has no such line
	return kilobytes * 1024
}

// postgresTime returns the processor time of a postmaster and all of its children.
func postgresTime(postmaster int) (time.Duration, error) {
	p, err := readProcess(postmaster)
	if err != nil {
		return 0, err
	}
	total := p.own + p.ended
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		if child, err := readProcess(id); err == nil && child.parent == postmaster { // a process may end meanwhile
			total += child.own
		}
	}
	return total, nil
}
