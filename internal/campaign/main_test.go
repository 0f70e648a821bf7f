package campaign

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const promotion reward.PromotionID = 42

var errInjected = errors.New("injected fault")
