package service

import (
	"errors"
	"strings"
)

// The errors of the clients of Redis and PostgreSQL that carry a server's reply. Only the
// drivers import these clients.
type (
	redisReply interface {
		error
		IsNil() bool
		IsNoScript() bool
	}
	postgresReply interface {
		error
		SQLState() string
	}
)

// Words returns the words in which a server has refused a command, on one line, or "" if
// the command failed for another reason, for example because the server did not answer.
func Words(err error) string {
	if reply, ok := errors.AsType[redisReply](err); ok && !reply.IsNil() {
		words, _, _ := strings.Cut(reply.Error(), " script: ") // where in which script, which helps nobody
		return strings.Join(strings.Fields(words), " ")
	}
	if reply, ok := errors.AsType[postgresReply](err); ok {
		return strings.Join(strings.Fields(reply.Error()), " ")
	}
	return ""
}

// Refusal says that a server refuses what something needs, in the server's words, and what
// that means. It returns "" for an error without such words.
func Refusal(err error, server, needs, effect string) string {
	words := Words(err)
	if words == "" {
		return ""
	}
	return server + " refuses what " + needs + " (" + words + "); it must accept that again: " + effect
}
