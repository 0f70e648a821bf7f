//go:build ci

package test

import (
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// publishers returns the command lines of the publishers of examples/, whose
// libraries it installs.
func publishers(t *testing.T) map[string][]string {
	t.Helper()
	in := fixture.Must(fleet.NewInstaller(t.Output()))(t)
	binary := filepath.Join(t.TempDir(), "publish")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".")
	build.Dir = "examples/publish-go"
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v; when go.mod has changed, run: cd %s && go mod tidy\n%s", err, build.Dir, out)
	}
	requirements := fixture.Must(os.ReadFile("examples/publish-python/requirements.txt"))(t)
	python := fixture.Must(in.PythonWith(t.Context(), "publish", requirements))(t)
	java, dir, err := in.KafkaLibraries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The jars of the publisher are among those of the broker, in the same versions.
	var pom struct {
		Dependencies []struct {
			ArtifactID string `xml:"artifactId"`
			Version    string `xml:"version"`
		} `xml:"dependencies>dependency"`
	}
	text, err := os.ReadFile("examples/publish-java/pom.xml")
	if err == nil {
		err = xml.Unmarshal(text, &pom)
	}
	if err != nil || len(pom.Dependencies) == 0 {
		t.Fatal(err, pom)
	}
	jars := fixture.Must(filepath.Glob(filepath.Join(dir, "*.jar")))(t)
	for _, d := range pom.Dependencies {
		if jar := d.ArtifactID + "-" + d.Version + ".jar"; !slices.Contains(jars, filepath.Join(dir, jar)) {
			t.Errorf("examples/publish-java/pom.xml names %s, which is not among the libraries of internal/lab/fleet/pom.xml", jar)
		}
	}
	// Compiled once: `java Publish.java` would compile it for each run.
	classes, classPath := t.TempDir(), strings.Join(jars, string(filepath.ListSeparator))
	compile := exec.CommandContext(t.Context(), java, "-m", "jdk.compiler/com.sun.tools.javac.Main",
		"-cp", classPath, "-d", classes, "examples/publish-java/Publish.java")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return map[string][]string{
		"Go":     {binary},
		"Python": {python, "examples/publish-python/publish.py"},
		"Java":   {java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classes + string(filepath.ListSeparator) + classPath, "Publish"},
	}
}

// TestExamplePublishers publishes targets with each of the programs of examples/, to
// the embedded broker and to a real Kafka, twice: each target is paid once.
func TestExamplePublishers(t *testing.T) {
	t.Parallel()
	const targets, amount = 200, 3
	var csv strings.Builder
	for id := range targets {
		fmt.Fprintf(&csv, "%d,user-%d-é,%d\n", id, id, amount)
	}
	commands := publishers(t)
	for broker, w := range map[string]world{
		"Embedded": embedded,
		"Kafka": func(t *testing.T, cfg *config.Config) {
			t.Helper()
			cfg.Kafka.Brokers, cfg.Kafka.TopicPrefix = fixture.Topics(t)
		},
	} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, w, moneysim.Faults{})
			publish := func(language, promotion string, lines string) (string, error) {
				command := commands[language]
				cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], promotion)...)
				cmd.Env = append(os.Environ(), "KAFKA_BROKERS="+strings.Join(r.engine.Brokers(), ","), "KAFKA_TOPIC_PREFIX="+r.cfg.Kafka.TopicPrefix)
				cmd.Stdin = strings.NewReader(lines)
				var failed strings.Builder
				cmd.Stderr = &failed
				out, err := cmd.Output()
				if err != nil {
					err = fmt.Errorf("%w: %s", err, failed.String())
				}
				return string(out), err
			}
			number := 0
			for language := range commands {
				number++
				promotion := fmt.Sprint(number)
				for range 2 {
					said, err := publish(language, promotion, csv.String())
					if want := fmt.Sprintf("published %d targets of promotion %s\n", targets, promotion); err != nil || said != want {
						t.Fatalf("%s said %q, %v", language, said, err)
					}
				}
				r.until(promotion, "completed", func(p client.Promotion) bool {
					return p.Status == "COMPLETED" && p.Counts.Succeeded == targets
				})
				if broker != "Embedded" {
					continue
				}
				if said, err := publish(language, promotion, "no target\n"); err == nil {
					t.Errorf("%s accepts a line that names no target: %s", language, said)
				}
			}
			if stats := r.sim.Stats(); stats.Charges != int64(targets*len(commands)) || r.sim.MaxChargesPerKey() != 1 {
				t.Errorf("%d charges of %d targets in %d promotions", stats.Charges, targets, len(commands))
			}
			for letter, err := range r.api.DeadLetters(t.Context(), client.DeadLetterFilter{}) {
				if err != nil {
					t.Fatal(err)
				}
				t.Errorf("dead letter %+v", letter)
			}
		})
	}
}
