package campaign

import (
	"errors"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"

	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { fixture.Main(m) }

const promotion reward.PromotionID = 42

var errInjected = errors.New("injected fault")
