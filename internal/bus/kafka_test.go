package bus_test

import (
	"os"
	"testing"

	"github.com/largesse/largesse/internal/bus/bustest"
)

func TestKafka(t *testing.T) {
	t.Parallel()
	addr := os.Getenv("LARGESSE_TEST_KAFKA")
	if addr == "" {
		t.Fatal("LARGESSE_TEST_KAFKA names no Kafka broker: run it by make test")
	}
	bustest.Exercise(t, []string{addr})
}
