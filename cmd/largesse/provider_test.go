package main

import (
	"strings"
	"testing"
)

func TestProviderCheck(t *testing.T) {
	t.Parallel()
	r := largesseRun(t.Context(), "", nil, "provider", "check", "http://127.0.0.1:1", "--yes")
	if r.code != exitFailed || !strings.Contains(r.stdout, "check that it runs") || !strings.Contains(r.stderr, "1 of 1 check failed") {
		t.Errorf("nobody there: %+v", r)
	}
	wantWrongUse(t, nil, "provider check", []wrongRun{
		{[]string{"http://127.0.0.1:1"}, "add --yes to confirm"},
		{[]string{"--yes"}, "needs the URL of a provider"},
		{[]string{"http://a", "http://b"}, "takes one URL"},
		{[]string{"ftp://a", "--yes"}, "money.url"},
		{[]string{"http://127.0.0.1:1", "--yes", "--user", ""}, "must not be empty"},
		{[]string{"http://127.0.0.1:1", "--yes", "--wait", "2h"}, "from 0s to 1h"},
		{[]string{"http://127.0.0.1:1", "--yes", "--money-request-path", "/x"}, "money.request.body (default) is missing"},
	})
}
