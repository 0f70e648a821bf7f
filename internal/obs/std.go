package obs

import (
	"errors"
	"log"
	"strings"
)

// Std is for parts of the standard library that want its logger: each line is
// a warning, and those that begin with one of quiet are for debugging.
func (l Log) Std(quiet ...string) *log.Logger {
	return log.New(stdLines{l, quiet}, "", 0)
}

type stdLines struct {
	log   Log
	quiet []string
}

// Write takes one line.
func (s stdLines) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	for _, q := range s.quiet {
		if strings.HasPrefix(line, q) {
			s.log.Debug(Failed, "error", line)
			return len(p), nil
		}
	}
	s.log.Warn(Failed, errors.New(line))
	return len(p), nil
}
