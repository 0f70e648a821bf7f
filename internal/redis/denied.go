package redis

import (
	"context"
	_ "embed"

	"github.com/redis/rueidis"
)

//go:embed denied.lua
var deniedText string

// Denied returns the names of those commands that a server does not have, or that its user
// may not run. It runs none of them.
func Denied(ctx context.Context, node rueidis.Client, commands [][]string) ([]string, error) {
	run := node.B().Eval().Script(deniedText).Numkeys(0).Arg(counted(commands)...).Build()
	return node.Do(ctx, run).AsStrSlice()
}
