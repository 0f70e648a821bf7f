package governor_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/governor/governortest"
)

func TestLocalRates(t *testing.T) {
	t.Parallel()
	governortest.Exercise(t, func(t *testing.T, test func(t *testing.T, rates governor.Rates, wait func(d time.Duration))) {
		synctest.Test(t, func(t *testing.T) { test(t, &governor.LocalRates{}, time.Sleep) })
	})
}
