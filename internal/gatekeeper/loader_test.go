package gatekeeper

import (
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// TestLoadKinds checks what becomes of a line.
func TestLoadKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode      reward.IssueMode
		base, old int64
		exists    bool
		want      gate.LoadKind
	}{
		{reward.ModeStream, 0, 0, false, gate.LoadFresh},
		{reward.ModeKafka, 0, 0, false, gate.LoadFresh},
		{reward.ModeStream, 3, 4, true, gate.LoadKeep},
		{reward.ModeStream, 4, 4, true, gate.LoadRemake},
		{reward.ModeStream, 5, 4, true, gate.LoadRemake},
		{reward.ModeKafka, 0, 4, true, gate.LoadRemake},
		{reward.ModeSync, 0, 4, true, gate.LoadRemake},
	} {
		row := &reward.CouponTemplate{Mode: c.mode, Base: c.base, Generation: 9}
		if got := loadKind(row, gate.Header{Exists: c.exists, Generation: c.old}); got != c.want {
			t.Errorf("%+v: kind %d", c, got)
		}
	}
}
