package parts

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
)

// Every credential of the settings reaches the client.
func TestMoneyCredentials(t *testing.T) {
	t.Parallel()
	c, warnings, err := config.Load(config.LoadParams{Flags: map[string]string{
		"money.url": "https://pay", "money.auth-header": "X-Token", "money.token-file": "t", "money.client-cert": "c", "money.client-key": "k", "money.ca-file": "a",
	}})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	want := money.Credentials{Header: "X-Token", TokenFile: "t", CAFile: "a", CertFile: "c", KeyFile: "k"}
	if got := MoneyConfig(c, obs.Log{}).Credentials; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	_, warnings, err = config.Load(config.LoadParams{Flags: map[string]string{"money.url": "http://pay", "money.token-file": "t"}})
	if err != nil || len(warnings) != 2 || !strings.HasPrefix(warnings[0], "money.url is http:// to pay") || !strings.HasPrefix(warnings[1], "money.url is http://, so credentials") {
		t.Errorf("error %v, warnings %q", err, warnings)
	}
}
