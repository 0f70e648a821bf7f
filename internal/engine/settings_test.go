package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
)

func TestShownSettings(t *testing.T) {
	t.Parallel()
	c, _, err := config.Load(config.LoadParams{Environ: []string{
		"LARGESSE_DATABASE_URL=postgres://u:hunter2@db/x", "LARGESSE_WEBHOOK_SECRET=hunter2hunter2hunter2hunter2hunter2",
	}})
	if err != nil {
		t.Fatal(err)
	}
	shown := shownSettings(c)
	for _, want := range []client.Setting{
		{Name: "database.url", Value: "postgres://u:xxxxx@db/x", Source: "environment LARGESSE_DATABASE_URL"},
		{Name: "webhook.secret", Value: "xxxxx", Source: "environment LARGESSE_WEBHOOK_SECRET"},
		{Name: "money.timeout", Value: "5s", Source: "default"},
	} {
		if !slices.Contains(shown, want) {
			t.Errorf("%v is missing", want)
		}
	}
	for _, s := range shown {
		if strings.Contains(s.Value, "hunter2") {
			t.Errorf("%s shows a secret", s.Name)
		}
	}
}
