package redis

import (
	"context"
	_ "embed"
	"strconv"

	"github.com/redis/rueidis"
)

//go:embed try.lua
var tryText string

var try = rueidis.NewLuaScript(tryText)

// Try runs commands in one script, and returns an error if the server does not answer, or
// refuses the script or a command. The commands must change nothing: keys are their keys,
// in one slot, of which those that a command would write to must not exist.
func (c *Client) Try(ctx context.Context, keys []string, commands [][]string) error {
	return try.Exec(ctx, c, keys, counted(commands)).Error()
}

// counted returns the words of commands as arguments of a script: the number of words
// before each command.
func counted(commands [][]string) []string {
	var args []string
	for _, words := range commands {
		args = append(append(args, strconv.Itoa(len(words))), words...)
	}
	return args
}
