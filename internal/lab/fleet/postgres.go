package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// NewPostgres finds a PostgreSQL and returns a server with fsync on, which
// keeps all committed data across restarts and crashes. PostgreSQL refuses to
// run as root, so root runs it as the user postgres.
func NewPostgres(ctx context.Context, in Installer) (*Server, error) {
	binaries, err := in.findPostgres(ctx)
	if err != nil {
		return nil, fmt.Errorf("find PostgreSQL: %w", err)
	}
	return &Server{
		name: "postgres", ports: 1, address: postgresAddress,
		farewell: syscall.SIGINT, // fast shutdown: does not wait for clients
		prepare: func(ctx context.Context, at place) error {
			cmd := exec.CommandContext(ctx, filepath.Join(binaries, "initdb"), "-D", postgresData(at), "-U", "postgres",
				"-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
			if err := asPostgres(cmd, at); err != nil {
				return err
			}
			if text, err := outputOf(cmd); err != nil {
				return fmt.Errorf("%w\n%s", err, Tail(text, 20))
			}
			return nil
		},
		command: func(at place) (*exec.Cmd, error) {
			cmd := exec.Command(filepath.Join(binaries, "postgres"), "-D", postgresData(at), "-p", strconv.Itoa(at.ports[0]), //nolint:noctx // Stop ends it gracefully, a context would kill it
				"-h", "127.0.0.1", "-k", at.dir, "-c", "max_connections=200", "-c", "fsync=on")
			// Only scripts/profile turns it on: counting statements costs each of them time.
			if _, err := os.Stat(filepath.Join(filepath.Dir(binaries), "lib", "pg_stat_statements.so")); err == nil {
				cmd.Args = append(cmd.Args, "-c", "shared_preload_libraries=pg_stat_statements", "-c", "pg_stat_statements.track=none")
			}
			return cmd, asPostgres(cmd, at)
		},
		answers: func(ctx context.Context, at place, _ int) error {
			conn, err := pgx.Connect(ctx, postgresAddress(at.ports[0]))
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			return conn.Ping(ctx)
		},
	}, nil
}

func postgresAddress(port int) string {
	return "postgres://postgres@" + loopback(port) + "/postgres?sslmode=disable"
}

func postgresData(at place) string { return filepath.Join(at.dir, "data") }

// asPostgres makes cmd run in the directory of the server. If we are root, it
// runs as the user postgres, who becomes the owner of the directory.
func asPostgres(cmd *exec.Cmd, at place) error {
	cmd.Dir, cmd.Env = at.dir, cLocale()
	if os.Getuid() != 0 {
		return nil
	}
	uid, gid, err := lookupUser("postgres")
	if err != nil {
		return err
	}
	if err := os.Chown(at.dir, int(uid), int(gid)); err != nil {
		return fmt.Errorf("change the owner of %s to postgres: %w", at.dir, err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	return nil
}

func lookupUser(name string) (uid, gid uint32, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, fmt.Errorf("look up user %s: %w", name, err)
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	group, groupErr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err, groupErr); err != nil {
		return 0, 0, fmt.Errorf("the IDs of user %s are not numbers: %w", name, err)
	}
	return uint32(id), uint32(group), nil
}
