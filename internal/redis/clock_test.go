package redis

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/service"
)

func TestSlot(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]uint16{
		"123456789": 0x31c3, "foo": 12182, "bar": 5061, "": 0,
		"{foo}": 12182, "a{foo}b": 12182, "{foo}{bar}": 12182, "{{foo}": Slot("{foo"),
	} {
		if got := Slot(key); got != want {
			t.Errorf("%q is in slot %d, want %d", key, got, want)
		}
	}
	if Slot("{}foo") == Slot("{}bar") {
		t.Error("an empty tag is no tag")
	}
}

func TestClocks(t *testing.T) {
	t.Parallel()
	ahead, behind := service.Clock{Ahead: 3 * time.Second}, service.Clock{Ahead: -7 * time.Second}
	one := Clocks{nodes: map[string]service.Clock{"a:1": behind}}
	if one.Of("foo") != behind || one.Worst() != behind {
		t.Errorf("one server: %v, %v", one.Of("foo"), one.Worst())
	}
	cluster := Clocks{
		nodes: map[string]service.Clock{"a:1": ahead, "b:1": behind},
		slots: []slotRange{{0, 6000, "b:1"}, {6001, 12182, "a:1"}, {12183, 12200, "gone:1"}},
	}
	for key, want := range map[string]service.Clock{"bar": behind, "foo": ahead, "123456789": {}} { // slots 5061, 12182, 12739
		if got := cluster.Of(key); got != want {
			t.Errorf("%s is at a server with the clock %v, want %v", key, got, want)
		}
	}
	if cluster.Worst() != behind {
		t.Errorf("the worst is %v", cluster.Worst())
	}
	if (Clocks{}).Of("foo") != (service.Clock{}) {
		t.Error("an unknown clock counts as right")
	}
}
