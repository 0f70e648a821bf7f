//go:build ci || nightly

package test

import (
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// installedPromtool returns the path of promtool.
func installedPromtool(t *testing.T) string {
	t.Helper()
	in := fixture.Must(fleet.NewInstaller(t.Output()))(t)
	return fixture.Must(in.Promtool(t.Context()))(t)
}
