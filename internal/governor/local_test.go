package governor_test

import (
	"testing"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/governor/governortest"
)

func TestLocalRates(t *testing.T) {
	t.Parallel()
	governortest.Exercise(t, func(testing.TB) governor.Rates { return &governor.LocalRates{} })
}
