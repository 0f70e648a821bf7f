package fleet

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
)

// childVariable turns this test binary into a parent that is to be killed.
const childVariable = "LARGESSE_FLEET_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		m.Run()
		return
	}
	// The child holds this process's standard output, whose end a reader sees.
	p, err := startProcess(exec.Command("sh", "-c", "echo up; exec sleep 1000"), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	<-p.done
	os.Exit(1)
}

// TestAServerDiesWithItsParent kills a process that has started another one.
func TestAServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), childVariable+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	if line, err := in.ReadString('\n'); err != nil || line != "up\n" {
		t.Errorf("the child said %q, %v", line, err)
	}
	if err := parent.Process.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 { // returns when no process is left
		t.Errorf("%q, %v", rest, err)
	}
	_ = parent.Wait() // says that it was killed
}

// TestFreePorts finds ports outside the range of outgoing connections.
func TestFreePorts(t *testing.T) {
	t.Parallel()
	ports, err := FreePorts(8)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ports)
	if len(slices.Compact(slices.Clone(ports))) != 8 || ports[0] < portMin || ports[7] > portMax {
		t.Errorf("got %v", ports)
	}
}
