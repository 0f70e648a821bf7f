package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// clientFiles are programs that use generated clients.
//
//go:embed clients
var clientFiles embed.FS

// clientsTimeout limits the suite, which takes a fifth of it.
const clientsTimeout = 5 * time.Minute

// clients generates a client from the description of a running instance with
// openapi-typescript and with openapi-python-client. With each it runs a promotion and
// a drop.
func clients(ctx context.Context, r runner, res *result) {
	ctx, cancel := context.WithTimeout(ctx, clientsTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "largesse-clients-")
	if err != nil {
		res.fail("folder", err.Error())
		return
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, clientFiles); err != nil {
		res.fail("folder", err.Error())
		return
	}
	in, err := fleet.NewInstaller(r.out)
	if err != nil {
		res.fail("install", err.Error())
		return
	}
	target, err := startInstance(ctx, r.root, dir)
	if err != nil {
		res.fail("start an instance", err.Error())
		return
	}
	defer target.stop()
	at := filepath.Join(dir, "clients")
	if err := target.saveDescription(ctx, filepath.Join(at, "openapi.json")); err != nil {
		res.fail("openapi.json", err.Error())
		return
	}
	for name, steps := range map[string]func() ([][]string, error){
		"openapi-typescript":    func() ([][]string, error) { return typeScriptSteps(ctx, in, at) },
		"openapi-python-client": func() ([][]string, error) { return pythonSteps(ctx, in) },
	} {
		lines, err := steps()
		if err != nil {
			res.fail("install "+name, err.Error())
			continue
		}
		last := len(lines) - 1
		lines[last] = append(lines[last], target.server, target.token)
		if err := runSteps(ctx, at, lines); err != nil {
			res.fail(name, err.Error()+"\n"+target.log.text())
			continue
		}
		res.pass()
	}
	if err := target.ended(); err != nil {
		res.fail("instance", err.Error()+"\n"+target.log.text())
	}
}

// typeScriptSteps returns the command lines that generate types, compile the program
// against them and run it.
func typeScriptSteps(ctx context.Context, in fleet.Installer, dir string) ([][]string, error) {
	node, modules, err := in.TypeScript(ctx)
	if err != nil {
		return nil, err
	}
	// Node looks for modules where the program is, and the program is an ES module.
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type":"module"}`), 0o600); err != nil {
		return nil, err
	}
	return [][]string{
		{node, filepath.Join(modules, "openapi-typescript", "bin", "cli.js"), "openapi.json", "--output", "api.ts"},
		{node, filepath.Join(modules, "typescript", "bin", "tsc"), "--project", "tsconfig.json"},
		{node, filepath.Join("out", "campaign.js")},
	}, nil
}

// pythonSteps returns the command lines that generate a package and run the program,
// which imports it.
func pythonSteps(ctx context.Context, in fleet.Installer) ([][]string, error) {
	python, err := in.OpenAPIPythonClient(ctx)
	if err != nil {
		return nil, err
	}
	return [][]string{
		{
			python, "-m", "openapi_python_client", "generate", "--path", "openapi.json", "--config", "python.yaml",
			"--meta", "none", "--output-path", "largesse_client",
		},
		{python, "campaign.py"},
	}, nil
}

// runSteps runs command lines in a folder, one after the other. Its error has the
// output of the one that failed.
func runSteps(ctx context.Context, dir string, steps [][]string) error {
	for _, step := range steps {
		if text, err := fleet.Output(ctx, dir, nil, step[0], step[1:]...); err != nil {
			return fmt.Errorf("%s: %w\n%s", filepath.Base(step[1]), err, fleet.Tail(text, 50))
		}
	}
	return nil
}

// saveDescription writes the description of the instance to a file.
func (in *instance) saveDescription(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, in.server+"/openapi.json", http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
