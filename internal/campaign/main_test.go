package campaign

import (
	"errors"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const promotion reward.PromotionID = 42

var errInjected = errors.New("injected fault")

func onFakeTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}
