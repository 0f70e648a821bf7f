package redisstream

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestReadInfo(t *testing.T) {
	t.Parallel()
	var redis NodeInspection
	redis.readInfo("# Server\r\nredis_version:7.0.15\r\nrole:slave\r\ncluster_enabled:1\r\naof_enabled:1\r\n" +
		"used_memory:12\r\nmaxmemory:34\r\nmaxmemory_policy:allkeys-lru\r\n")
	want := NodeInspection{Server: "Redis 7.0.15", Replica: true, Cluster: true, AppendOnly: true, MemoryUsed: 12, MemoryMax: 34, Policy: "allkeys-lru"}
	fixture.Equal(t, want, redis)
	var valkey NodeInspection
	valkey.readInfo("redis_version:7.2.4\r\nvalkey_version:7.1.0\r\nrole:master\r\n")
	if valkey.Server != "Valkey 7.1.0" || valkey.TooOld == nil || valkey.Replica || valkey.Cluster || valkey.AppendOnly {
		t.Errorf("%+v", valkey)
	}
}

func TestAnswersToProbes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		answer          string
		denied, refuses bool
	}{
		{"NOPERM this user has no permissions to run the 'xadd' command", true, false},
		{"ERR unknown command 'XAUTOCLAIM', with args beginning with: ", true, false},
		{"unknown subcommand 'GROUPS'", true, false},
		{"NOGROUP No such key", false, false},
		{"ERR no such key", false, false},
		{"MOVED 42 127.0.0.1:7001", false, false},
		{"OOM command not allowed when used memory > 'maxmemory'.", false, true},
		{"MISCONF Redis is configured to save RDB snapshots", false, true},
		{"READONLY You can't write against a read only replica.", false, true},
		{"NOREPLICAS Not enough good replicas to write.", false, true},
	} {
		if denied(tc.answer) != tc.denied || refusesWrites(tc.answer) != tc.refuses {
			t.Errorf("%q: denied %v, refuses writes %v", tc.answer, denied(tc.answer), refusesWrites(tc.answer))
		}
	}
}

// TestEveryCommandOfAScriptIsProbed looks for commands of which doctor would not say that
// the user may not run them.
func TestEveryCommandOfAScriptIsProbed(t *testing.T) {
	t.Parallel()
	var probed []string
	for _, words := range slices.Concat(probes(""), permissions("")) {
		probed = append(probed, words[0])
	}
	call := regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`)
	found := 0
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".lua" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range call.FindAllSubmatch(text, -1) {
			found++
			if !slices.Contains(probed, string(match[1])) {
				t.Errorf("%s runs %s, which neither probes nor permissions has", path, match[1])
			}
		}
		return err
	})
	if err != nil || found < 100 {
		t.Errorf("found %d commands: %v", found, err)
	}
}
