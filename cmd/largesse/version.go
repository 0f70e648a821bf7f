package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
)

// version is set by releases: -ldflags "-X main.version=v1.2.3".
var version = ""

type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Dirty   bool   `json:"dirty,omitempty"` // built from files with uncommitted changes
	Go      string `json:"go"`
	System  string `json:"system"`

	at *time.Time // of the commit; nil: unknown
}

func buildVersion() build {
	b := build{Version: version, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "(devel)" {
			b.Version = cmp.Or(b.Version, info.Main.Version)
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Dirty = s.Value == "true"
			case "vcs.time":
				if at, err := time.Parse(time.RFC3339, s.Value); err == nil {
					b.at = &at
				}
			}
		}
	}
	b.Version = cmp.Or(b.Version, "devel")
	return b
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show what the binary was built from",
		Example: inBothForms("version"),
		RunE: func(*cobra.Command, []string) error {
			b := buildVersion()
			commit := cmp.Or(b.Commit, "unknown commit")
			if b.Dirty {
				commit += ", changed"
			}
			return c.show(b, nil, fmt.Sprintf("largesse %s (%s) %s %s", b.Version, commit, b.Go, b.System))
		},
	}
}
