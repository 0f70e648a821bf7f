package parts

import (
	"syscall"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestReleaseWhileAChildStarts gives the file of a lock a second descriptor, as a child
// process has it between fork and exec.
func TestReleaseWhileAChildStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock := fixture.Must(LockDir(dir, "host-1"))(t)
	child := fixture.Must(syscall.Dup(int(lock.file.Fd())))(t)
	defer syscall.Close(child)
	lock.Release()
	lock = fixture.Must(LockDir(dir, "host-2"))(t)
	lock.Release()
}
