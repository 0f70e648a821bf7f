package code_test

import (
	"testing"

	"github.com/largesse/largesse/internal/models/code"
)

func TestNames(t *testing.T) {
	t.Parallel()
	names := code.In("..")
	if missing := names.Check("code.In code.Names code.Names.Check code.Names.root explore.Model.Next explore.restSteps explore/explore.go"); missing != nil {
		t.Error(missing)
	}
	for _, name := range []string{"code.Out", "code.Names.Missing", "nothing.In", "explore/other.go", "explore.Model"} {
		if missing := names.Check(name); (len(missing) == 1) == (name == "explore.Model") {
			t.Errorf("%s: %v", name, missing)
		}
	}
}
