//go:build ci

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestChart renders deploy/helm/largesse with several values, and compares the
// objects with the schemas of Kubernetes and KEDA.
func TestChart(t *testing.T) {
	t.Parallel()
	helm, kubeconform := deployTool(t, "helm.sh/helm/v4/cmd/helm"), deployTool(t, "github.com/yannh/kubeconform/cmd/kubeconform")
	chart := filepath.Join("deploy", "helm", "largesse")
	schemas := kubernetesSchemas(t)
	lint := exec.CommandContext(t.Context(), helm, "lint", "--strict", chart)
	if text, err := lint.CombinedOutput(); err != nil {
		t.Errorf("helm lint: %v\n%s", err, text)
	}
	plain := []string{"ConfigMap", "ConfigMap", "Deployment", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "PodDisruptionBudget", "Service", "ServiceAccount"}
	pods := []any{map[string]any{"namespaceSelector": map[string]any{}}}
	prometheus := []any{map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"app": "prometheus"}}}}
	for name, tc := range map[string]struct {
		set          []string
		want         []string
		from, probes any // what the network policy lets in; nil is everybody
	}{
		"defaults": {nil, plain, pods, pods},
		"everything": {
			[]string{
				"keda.enabled=true", "keda.prometheus.enabled=true", "keda.kafka.authentication=kafka", "ingress.enabled=true",
				"ingress.tlsSecret=tls", "networkPolicy.probesFrom[0].podSelector.matchLabels.app=prometheus", "files[0].name=money", "files[0].secret=largesse-money",
				"image.pullSecrets[0]=registry", "settings.approval.above=10000000",
			},
			slices.Sorted(slices.Values(append(slices.Clone(plain), "Ingress", "ScaledObject"))), nil, prometheus,
		},
		"one kind of instance": {
			[]string{"workers.enabled=false", "migrate.enabled=false", "networkPolicy.enabled=false"},
			[]string{"ConfigMap", "Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"},
			nil, nil,
		},
		"a balancer":   {[]string{"service.type=LoadBalancer"}, plain, nil, pods},
		"some callers": {[]string{"service.type=LoadBalancer", "networkPolicy.from[0].namespaceSelector.matchLabels.team=shop"}, plain, []any{map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"team": "shop"}}}}, pods},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"template", "drop", chart}
			for _, s := range tc.set {
				args = append(args, "--set", s)
			}
			var rendered, trouble bytes.Buffer
			template := exec.CommandContext(t.Context(), helm, args...)
			template.Stdout, template.Stderr = &rendered, &trouble
			if err := template.Run(); err != nil {
				t.Fatalf("%v\n%s", err, trouble.String())
			}
			check := exec.CommandContext(t.Context(), kubeconform, "-strict", "-summary", "-schema-location",
				filepath.Join(schemas, "{{.ResourceKind}}{{.KindSuffix}}.json"))
			check.Stdin = bytes.NewReader(rendered.Bytes())
			if text, err := check.CombinedOutput(); err != nil {
				t.Errorf("kubeconform: %v\n%s", err, text)
			}
			objects := decodeAll(t, rendered.Bytes())
			var kinds []string
			for _, o := range objects {
				kinds = append(kinds, o["kind"].(string))
				if o["kind"] == "ConfigMap" {
					checkChartSettings(t, o)
				}
				if o["kind"] == "NetworkPolicy" {
					rules := o["spec"].(map[string]any)["ingress"].([]any)
					from, probes := rules[0].(map[string]any)["from"], rules[1].(map[string]any)["from"]
					if len(rules) != 2 || !reflect.DeepEqual(from, tc.from) || !reflect.DeepEqual(probes, tc.probes) {
						t.Errorf("the network policy lets in %v", rules)
					}
				}
			}
			slices.Sort(kinds)
			if !slices.Equal(kinds, tc.want) {
				t.Errorf("objects are %v, want %v", kinds, tc.want)
			}
		})
	}
	t.Run("a wrong value", func(t *testing.T) {
		t.Parallel()
		text, err := exec.CommandContext(t.Context(), helm, "template", "drop", chart, "--set", "workers.roles[0]=cook").CombinedOutput()
		if err == nil || !strings.Contains(string(text), "roles") {
			t.Errorf("a role that does not exist is accepted: %s", text)
		}
	})
}

// checkChartSettings loads the settings file of a config map as an instance does.
func checkChartSettings(t *testing.T, object map[string]any) {
	t.Helper()
	data := object["data"].(map[string]any)
	file := filepath.Join(t.TempDir(), "largesse.yaml")
	fixture.OK(t, os.WriteFile(file, []byte(data["largesse.yaml"].(string)), 0o600))
	c, _, err := config.Load(config.LoadParams{File: file, Environ: []string{
		"LARGESSE_DATABASE_URL=postgres://db/largesse", "LARGESSE_REDIS_URL=redis://redis", "LARGESSE_KAFKA_BROKERS=kafka:9092", "LARGESSE_MONEY_URL=https://money",
	}})
	if err != nil {
		t.Error(err)
	} else if c.HTTP.ProbeListen != "0.0.0.0:8081" {
		t.Errorf("probes are at %q, not where the chart looks", c.HTTP.ProbeListen)
	}
}

func decodeAll(t *testing.T, text []byte) []map[string]any {
	t.Helper()
	var objects []map[string]any
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var o map[string]any
		if err := decoder.Decode(&o); err != nil {
			if err.Error() == "EOF" {
				return objects
			}
			t.Fatal(err)
		}
		if o != nil {
			objects = append(objects, o)
		}
	}
}

// deployTool builds a program of tools/deploy/go.mod and returns its path.
func deployTool(t *testing.T, path string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(path))
	if text, err := exec.CommandContext(t.Context(), "go", "build", "-modfile=tools/deploy/go.mod", "-o", out, path).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// moduleDir returns the folder of a downloaded module.
func moduleDir(ctx context.Context, t *testing.T, module string) string {
	t.Helper()
	text, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
	if err != nil {
		t.Fatalf("download %s: %v\n%s", module, err, text)
	}
	var answer struct{ Dir string }
	fixture.OK(t, json.Unmarshal(text, &answer))
	return answer.Dir
}

// kubernetesSchemas writes a JSON Schema per kind that the chart uses, and returns
// their folder. They are made from the API description of Kubernetes, which is in its
// module, and from KEDA's definition of its resource.
func kubernetesSchemas(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name string, schema any) {
		text := fixture.Must(json.Marshal(schema))(t)
		fixture.OK(t, os.WriteFile(filepath.Join(dir, name+".json"), text, 0o600))
	}
	text := fixture.Must(os.ReadFile(filepath.Join(moduleDir(t.Context(), t, "k8s.io/kubernetes@v1.37.2"), "api", "openapi-spec", "swagger.json")))(t)
	var api struct{ Definitions map[string]map[string]any }
	fixture.OK(t, json.Unmarshal(text, &api))
	for name, d := range api.Definitions {
		// Fields that no schema names are mistakes.
		if _, open := d["additionalProperties"]; d["properties"] != nil && !open {
			d["additionalProperties"] = false
		}
		// The description has them as strings, and numbers are allowed too.
		if strings.HasSuffix(name, "IntOrString") {
			delete(d, "type")
			delete(d, "format")
		}
	}
	for kind, definition := range map[string]string{
		"configmap-v1": "core.v1.ConfigMap", "service-v1": "core.v1.Service", "serviceaccount-v1": "core.v1.ServiceAccount",
		"deployment-apps-v1": "apps.v1.Deployment", "job-batch-v1": "batch.v1.Job",
		"poddisruptionbudget-policy-v1": "policy.v1.PodDisruptionBudget",
		"ingress-networking-v1":         "networking.v1.Ingress", "networkpolicy-networking-v1": "networking.v1.NetworkPolicy",
	} {
		put(kind, map[string]any{"$ref": "#/definitions/io.k8s.api." + definition, "definitions": api.Definitions})
	}
	text = fixture.Must(os.ReadFile(filepath.Join(moduleDir(t.Context(), t, "github.com/kedacore/keda/v2@v2.21.0"), "config", "crd", "bases", "keda.sh_scaledobjects.yaml")))(t)
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					Object map[string]any `yaml:"openAPIV3Schema"`
				}
			}
		}
	}
	fixture.OK(t, yaml.Unmarshal(text, &crd))
	scaled := crd.Spec.Versions[0].Schema.Object
	closeObjects(scaled, true)
	put("scaledobject-keda-v1alpha1", scaled)
	return dir
}

// closeObjects forbids fields that a schema does not name, except in the metadata,
// whose fields the definition of a resource leaves out.
func closeObjects(schema map[string]any, top bool) {
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if p, ok := properties[name].(map[string]any); ok && (!top || name != "metadata") {
			closeObjects(p, false)
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		closeObjects(items, false)
	}
	if _, open := schema["additionalProperties"]; properties != nil && !open && schema["x-kubernetes-preserve-unknown-fields"] == nil {
		schema["additionalProperties"] = false
	}
}
