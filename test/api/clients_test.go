//go:build ci

package api

import (
	_ "embed"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/test/instance"
)

// clientRequirements pins openapi-python-client and what its clients need, like
// schemathesis.txt.
//
//go:embed clients/requirements.txt
var clientRequirements []byte

// TestGeneratedClients generates a client from the description of a running instance with
// openapi-typescript and with openapi-python-client. With each it runs a promotion and
// a drop.
func TestGeneratedClients(t *testing.T) {
	t.Parallel()
	install := fixture.Must(fleet.NewInstaller(t.Output()))(t)
	in := instance.Start(t, nil)
	description := in.Send(in.Token, http.MethodGet, "/openapi.json", "", "")
	// generate runs command lines in a copy of the folder clients.
	generate := func(t *testing.T, steps ...[]string) (said string) {
		t.Helper()
		dir := t.TempDir()
		fixture.OK(t, os.CopyFS(dir, os.DirFS("clients")))
		fixture.OK(t, os.WriteFile(filepath.Join(dir, "openapi.json"), []byte(description), 0o600))
		for _, step := range steps {
			text, err := fleet.Output(t.Context(), dir, nil, step[0], step[1:]...)
			if err != nil {
				t.Fatalf("%v\n%s", err, fleet.Tail(text, 50))
			}
			said += text
		}
		return said
	}
	t.Run("openapi-typescript", func(t *testing.T) {
		t.Parallel()
		npm := fixture.Must(install.Node(t.Context()))(t)
		generate(t,
			[]string{npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"},
			[]string{"npx", "openapi-typescript", "openapi.json", "--output", "api.ts"},
			[]string{"npx", "tsc", "--project", "tsconfig.json"},
			[]string{"node", "out/campaign.js", in.URL, in.Token})
	})
	t.Run("openapi-python-client", func(t *testing.T) {
		t.Parallel()
		python := fixture.Must(install.PythonWith(t.Context(), "openapi-python-client", clientRequirements))(t)
		said := generate(t,
			// As pip does.
			[]string{"python3", "-c", `import json; from pip._vendor.packaging.version import Version; Version(json.load(open("openapi.json"))["info"]["version"])`},
			[]string{
				python, "-m", "openapi_python_client", "generate", "--path", "openapi.json", "--config", "python.yaml",
				"--meta", "none", "--output-path", "largesse_client",
			},
			[]string{python, "campaign.py", in.URL, in.Token})
		if strings.Contains(said, "WARNING") {
			t.Errorf("the generator warns:\n%s", said)
		}
	})
}
