package bus_test

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/bus/bustest"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

func TestKafka(t *testing.T) {
	t.Parallel()
	bustest.Exercise(t, strings.Split(fixture.Address(t, fleet.VariableKafka), ","))
}
