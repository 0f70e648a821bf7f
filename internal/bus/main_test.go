package bus_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/obs"
)

// childDir names the variable that turns this test binary into a process with
// nothing but a broker, for the tests that kill one.
const childDir = "LARGESSE_BUS_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		serveUntilKilled(dir)
	}
	fixture.Main(m)
}

// serveUntilKilled says its address on standard output.
func serveUntilKilled(dir string) {
	broker, err := bus.StartBroker(context.Background(), bus.BrokerConfig{Dir: dir, Log: obs.Log{}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(broker.Addr())
	select {}
}
