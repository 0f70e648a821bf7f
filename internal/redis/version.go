package redis

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/service"
)

// checkVersions returns an error if a server is too old for the commands that
// Largesse uses, such as XCLAIM that drops deleted entries.
func checkVersions(ctx context.Context, all rueidis.Client) error {
	for address, node := range all.Nodes() {
		info, err := node.Do(ctx, node.B().Info().Section("server").Build()).ToString()
		if strings.HasPrefix(service.Words(err), "NOPERM") {
			return fmt.Errorf("redis.url: INFO server at %s: %w; change the ACL of this user: largesse doctor prints the rules", address, err)
		}
		if err != nil {
			return fmt.Errorf("redis.url: INFO server at %s: %w", address, err)
		}
		if err := CheckVersion(info); err != nil {
			return fmt.Errorf("redis.url: %s %w", address, err)
		}
	}
	return nil
}

// CheckVersion returns an error if the reply of INFO names a version that is
// too old.
func CheckVersion(info string) error {
	if v := InfoValue(info, "valkey_version"); v != "" {
		if !atLeast(v, 7, 2) {
			return fmt.Errorf("runs Valkey %s; 7.2 or later is required", v)
		}
		return nil
	}
	if v := InfoValue(info, "redis_version"); !atLeast(v, 7, 0) {
		return fmt.Errorf("runs Redis %q; 7.0 or later is required", v)
	}
	return nil
}

// InfoValue returns the value of a line name:value, or "" if there is none. RESP3 begins
// verbatim text with its format.
func InfoValue(info, name string) string {
	for line := range strings.Lines(strings.TrimPrefix(info, "txt:")) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func atLeast(version string, major, minor int) bool {
	var haveMajor, haveMinor int
	if _, err := fmt.Sscanf(version, "%d.%d", &haveMajor, &haveMinor); err != nil {
		return false
	}
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}
