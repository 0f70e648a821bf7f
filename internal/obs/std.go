package obs

import (
	"errors"
	"log"
	"strings"
)

// Std returns a logger for parts of the standard library: each line is a
// warning, or a debug line if it begins with one of quiet.
func (l Log) Std(quiet ...string) *log.Logger {
	return log.New(stdLines{l, quiet}, "", 0)
}

type stdLines struct {
	log   Log
	quiet []string
}

// Write logs one line.
func (s stdLines) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	for _, q := range s.quiet {
		if strings.HasPrefix(line, q) {
			s.log.Debug("HTTP library reported an error", "error", line)
			return len(p), nil
		}
	}
	s.log.Warn("HTTP library reported an error", errors.New(line))
	return len(p), nil
}
