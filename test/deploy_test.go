package test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/config/configtest"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestDeploymentSettings: the settings of each environment are valid, without a
// warning, and have the figures that docs/deploy.md promises.
func TestDeploymentSettings(t *testing.T) {
	t.Parallel()
	secrets := []string{
		"LARGESSE_DATABASE_URL=postgres://largesse:secret@db/largesse?sslmode=verify-full", "LARGESSE_REDIS_URL=rediss://redis:6379",
	}
	for name, want := range map[string]struct {
		environ                 []string
		least, most, pauseMilli int
	}{
		"local":      {nil, 1, 4, 100},
		"dev":        {secrets, 1, 8, 100},
		"staging":    {secrets, 1, 16, 100},
		"production": {secrets, 8, 32, 5000},
	} {
		text := fixture.Must(os.ReadFile(filepath.Join("deploy", "settings", name+".yaml")))(t)
		// Tokens and certificates are on the machine that is deployed to.
		dir := t.TempDir()
		token := filepath.Join(dir, "token")
		fixture.OK(t, os.WriteFile(token, []byte("t\n"), 0o600))
		cert, key := configtest.IssueCert(t, dir, "api", time.Now().Add(24*time.Hour))
		file := filepath.Join(dir, name+".yaml")
		here := strings.NewReplacer("/etc/largesse/secrets/money-token", token, "/etc/largesse/secrets/api.crt", cert, "/etc/largesse/secrets/api.key", key)
		fixture.OK(t, os.WriteFile(file, []byte(here.Replace(string(text))), 0o600))
		c, warnings, err := config.Load(config.LoadParams{File: file, Environ: want.environ})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range warnings {
			if name == "production" {
				t.Errorf("%s: %s", name, w)
			}
		}
		s := c.Redis.Stream
		if s.MinConsumerPerInstance != want.least || s.MaxConsumerPerInstance != want.most || s.PollIntervalMs != want.pauseMilli {
			t.Errorf("%s: %d to %d consumers, %d ms; want %d to %d, %d ms", name,
				s.MinConsumerPerInstance, s.MaxConsumerPerInstance, s.PollIntervalMs, want.least, want.most, want.pauseMilli)
		}
		if !s.Enabled {
			t.Errorf("%s: streams are off", name)
		}
	}
}

// composeFile is what the test reads of deploy/compose.yaml.
type composeFile struct {
	Services map[string]struct {
		Image       string
		Build       struct{ Context, Dockerfile string }
		Environment map[string]string
		Ports       []string
		Volumes     []string
		Healthcheck struct{ Test []string }
		DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	}
	Volumes map[string]any
}

// TestCompose: every name in deploy/compose.yaml leads somewhere, nothing is
// published beyond loopback, and the settings of the instances are settings.
func TestCompose(t *testing.T) {
	t.Parallel()
	text := fixture.Must(os.ReadFile(filepath.Join("deploy", "compose.yaml")))(t)
	var file composeFile
	fixture.OK(t, yaml.Unmarshal(text, &file))
	for _, name := range []string{"largesse-1", "largesse-2", "postgres", "valkey", "kafka", "prometheus", "grafana"} {
		if _, found := file.Services[name]; !found {
			t.Errorf("there is no service %s", name)
		}
	}
	for name, s := range file.Services {
		if s.Build.Context != "" {
			if _, err := os.Stat(filepath.Join("deploy", s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if !strings.Contains(s.Image, ":") {
			t.Errorf("%s: the image %q has no version", name, s.Image)
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s to others", name, port)
			}
		}
		for _, volume := range s.Volumes {
			from, _, _ := strings.Cut(volume, ":")
			if !strings.HasPrefix(from, ".") {
				if _, found := file.Volumes[from]; !found {
					t.Errorf("%s: the volume %s is not declared", name, from)
				}
			} else if _, err := os.Stat(filepath.Join("deploy", from)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for other, on := range s.DependsOn {
			target, found := file.Services[other]
			if !found {
				t.Errorf("%s waits for %s, which does not exist", name, other)
			}
			if on.Condition == "service_healthy" && len(target.Healthcheck.Test) == 0 {
				t.Errorf("%s waits until %s is healthy, which nothing checks", name, other)
			}
		}
	}
	instance := file.Services["largesse-1"]
	var environ []string
	for _, key := range slices.Sorted(maps.Keys(instance.Environment)) {
		environ = append(environ, key+"="+instance.Environment[key])
	}
	c, warnings, err := config.Load(config.LoadParams{Environ: environ})
	if err != nil {
		t.Error(err)
	}
	for _, w := range warnings {
		if strings.Contains(w, "no setting") {
			t.Error(w)
		}
	}
	if len(c.Kafka.Brokers) == 0 || c.Database.URL == "" || c.Redis.URL == "" {
		t.Errorf("the instances use embedded engines: %+v", c)
	}
}

// TestUnit: the unit stops an instance gently and gives it no rights.
func TestUnit(t *testing.T) {
	t.Parallel()
	text := fixture.Must(os.ReadFile(filepath.Join("deploy", "systemd", "largesse.service")))(t)
	for _, line := range []string{"NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=", "User=largesse", "TimeoutStopSec=30"} {
		if !strings.Contains(string(text), "\n"+line+"\n") {
			t.Errorf("the unit has no line %s", line)
		}
	}
	args := regexp.MustCompile(`(?m)^ExecStart=\S+ (.*)$`).FindStringSubmatch(string(text))
	if args == nil || !strings.HasPrefix(args[1], "serve --config ") {
		t.Errorf("the unit runs %v", args)
	}
}
