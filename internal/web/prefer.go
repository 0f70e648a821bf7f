package web

import (
	"strconv"
	"strings"
	"time"
)

const waitMax = 30 * time.Second

// PreferredWait returns the wait preference of Prefer headers (RFC 7240), at most
// 30 s, or 0 if there is none. It ignores a preference that it cannot parse. If
// there are several, the first one counts.
func PreferredWait(headers []string) time.Duration {
	for _, header := range headers {
		for _, preference := range splitUnquoted(header, ',') {
			first := splitUnquoted(preference, ';')[0] // parameters of wait have no meaning
			name, value, _ := strings.Cut(first, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value = strings.TrimSpace(value)
			if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
				value = value[1 : len(value)-1]
			}
			seconds, err := strconv.ParseUint(value, 10, 31)
			if err != nil {
				return 0
			}
			return min(time.Duration(seconds)*time.Second, waitMax)
		}
	}
	return 0
}

// splitUnquoted splits s at each mark outside of quoted strings.
func splitUnquoted(s string, mark byte) []string {
	var parts []string
	quoted, from := false, 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '\\' && quoted:
			i++
		case s[i] == mark && !quoted:
			parts = append(parts, s[from:i])
			from = i + 1
		}
	}
	return append(parts, s[from:])
}
