package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestAReportReplacesItsFileAsAWhole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report.csv")
	fixture.OK(t, os.WriteFile(path, []byte("the last one"), 0o600))
	for _, tt := range []struct {
		answer answer
		code   int
		want   string
	}{
		{answer{404, `{"status":404,"code":"PROMOTION_NOT_FOUND","detail":"there is no promotion 7"}`}, exitFailed, "the last one"},
		{answer{200, "section,name\n"}, exitDone, "section,name\n"},
	} {
		env, _ := fakeServer(t, map[string]answer{"GET /v1/promotions/7/report?format=csv&language=ko&zone=Asia%2FSeoul": tt.answer})
		r := largesseRun(t.Context(), "", env, "promotion", "report", "7", "--file", path, "--zone", "Asia/Seoul", "--language", "ko")
		if r.code != tt.code {
			t.Errorf("%+v", r)
		}
		fixture.Equal(t, tt.want, string(fixture.Must(os.ReadFile(path))(t)))
		fixture.Equal(t, 1, len(fixture.Must(os.ReadDir(filepath.Dir(path)))(t)))
	}
}
