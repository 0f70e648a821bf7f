package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// checkVersions refuses servers that lack what the drivers build on, e.g.
// XAUTOCLAIM that drops deleted entries.
func checkVersions(ctx context.Context, all rueidis.Client) error {
	for address, node := range all.Nodes() {
		info, err := node.Do(ctx, node.B().Info().Section("server").Build()).ToString()
		if err != nil {
			return fmt.Errorf("redis.url: INFO server at %s: %w", address, err)
		}
		if err := CheckVersion(info); err != nil {
			return fmt.Errorf("redis.url: %s %w", address, err)
		}
	}
	return nil
}

// CheckVersion judges a server by its answer to INFO.
func CheckVersion(info string) error {
	if v := InfoValue(info, "valkey_version"); v != "" {
		if !atLeast(v, 7, 2) {
			return fmt.Errorf("runs Valkey %s; 7.2 or later is needed", v)
		}
		return nil
	}
	if v := InfoValue(info, "redis_version"); !atLeast(v, 7, 0) {
		return fmt.Errorf("runs Redis %q; 7.0 or later is needed", v)
	}
	return nil
}

// InfoValue reads a line name:value; "" when there is none.
func InfoValue(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func atLeast(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	haveMajor, errMajor := strconv.Atoi(first)
	haveMinor, errMinor := strconv.Atoi(second)
	if errMajor != nil || errMinor != nil {
		return false
	}
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}
