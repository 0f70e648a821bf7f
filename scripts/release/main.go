// Command release builds the archives of a release: for each target a tar.gz or zip
// file with the program, its documents and the licences of everything in it, Go modules
// and npm packages of the console, a list of its parts (SBOM, CycloneDX), and one file
// with all checksums. The same commit gives the same bytes, on any machine with the
// same Go.
//
//	go run ./scripts/release -version v1.2.3 -out dist
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// targets are what a release has by default, as GOOS/GOARCH.
const targets = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var r release
	var chosen string
	flag.StringVar(&r.version, "version", "", "version, such as v1.2.3 (required)")
	flag.StringVar(&r.out, "out", "dist", "directory for the files; created if it is missing")
	flag.StringVar(&chosen, "targets", targets, "comma-separated GOOS/GOARCH")
	flag.Parse()
	err := r.check(flag.Args())
	if err == nil {
		err = r.build(ctx, strings.Split(chosen, ","))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one call of the command.
type release struct {
	version, out string
	at           time.Time // of the commit, which every file in an archive has
}

var versions = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func (r *release) check(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected %q; everything is a flag, see -help", args[0])
	}
	if !versions.MatchString(r.version) {
		return fmt.Errorf("-version %q is not a version; write it like v1.2.3 or v1.2.3-rc.1", r.version)
	}
	return nil
}

func (r *release) build(ctx context.Context, targets []string) error {
	changed, err := output(ctx, nil, "git", "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return err
	}
	if changed != "" {
		return errors.New("there are uncommitted changes: commit them, so that the archives can be made again")
	}
	seconds, err := output(ctx, nil, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	unix, err := strconv.ParseInt(strings.TrimSpace(seconds), 10, 64)
	if err != nil {
		return fmt.Errorf("read the time of the commit: %w", err)
	}
	r.at = time.Unix(unix, 0).UTC()
	if err := os.MkdirAll(r.out, 0o750); err != nil {
		return err
	}
	var sums strings.Builder
	for _, target := range targets {
		system, machine, found := strings.Cut(target, "/")
		if !found {
			return fmt.Errorf("-targets: %q is not GOOS/GOARCH, such as linux/amd64", target)
		}
		files, err := r.target(ctx, system, machine)
		if err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), filepath.Base(file))
		}
		fmt.Println(files[0])
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(sums.String()), 0o644) //nolint:gosec // everybody may read a release
}

// target builds one program and returns its archive and its SBOM.
func (r *release) target(ctx context.Context, system, machine string) ([]string, error) {
	dir, err := os.MkdirTemp("", "largesse-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "largesse")
	if system == "windows" {
		program += ".exe"
	}
	if _, err := output(ctx, []string{"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + machine, "GOFLAGS="},
		"go", "build", "-trimpath", "-buildvcs=true", "-tags", "timetzdata", "-ldflags", "-s -w -X main.version="+r.version, "-o", program, "./cmd/largesse"); err != nil {
		return nil, err
	}
	members, err := r.members(ctx, program)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("largesse-%s-%s-%s", r.version, system, machine)
	archive, write := filepath.Join(r.out, name+".tar.gz"), r.tarball
	if system == "windows" {
		archive, write = filepath.Join(r.out, name+".zip"), r.zip
	}
	var packed bytes.Buffer
	if err := write(&packed, name, members); err != nil {
		return nil, err
	}
	if err := os.WriteFile(archive, packed.Bytes(), 0o644); err != nil { //nolint:gosec // everybody may read a release
		return nil, err
	}
	parts := filepath.Join(r.out, name+".cdx.json")
	if _, err := output(ctx, nil, "go", "tool", "-modfile=tools/release/go.mod", "cyclonedx-gomod", "bin",
		"-json", "-licenses", "-noserial", "-notimestamp", "-version", r.version, "-output", parts, program); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(parts)
	if err != nil {
		return nil, err
	}
	packages, err := consolePackages(".")
	if err != nil {
		return nil, err
	}
	if text, err = withPackages(text, packages); err != nil {
		return nil, err
	}
	if err := os.WriteFile(parts, text, 0o644); err != nil { //nolint:gosec // everybody may read a release
		return nil, err
	}
	return []string{archive, parts}, nil
}

// npmPackage is a package whose code is in the build of the console.
type npmPackage struct{ Name, Version, License, Text string }

// consolePackages returns the packages in the console, which its build lists. root is the
// top of the repository.
func consolePackages(root string) ([]npmPackage, error) {
	text, err := os.ReadFile(filepath.Join(root, "console", "dist", "assets", "licences.json"))
	if err != nil {
		return nil, err
	}
	var all []npmPackage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read the licences of the console: %w", err)
	}
	for _, p := range all {
		if p.Name == "" || p.Version == "" || p.License == "" || p.Text == "" {
			return nil, fmt.Errorf("the npm package %q %s has no licence: see console/dist/assets/licences.json", p.Name, p.Version)
		}
	}
	return all, nil
}

// withPackages adds npm packages to the components of an SBOM.
func withPackages(sbom []byte, packages []npmPackage) ([]byte, error) {
	var all map[string]json.RawMessage
	var parts []any
	err := json.Unmarshal(sbom, &all)
	if err == nil {
		err = json.Unmarshal(all["components"], &parts)
	}
	if err != nil {
		return nil, fmt.Errorf("read the SBOM: %w", err)
	}
	for _, p := range packages {
		address := "pkg:npm/" + strings.Replace(p.Name, "@", "%40", 1) + "@" + p.Version
		parts = append(parts, map[string]any{
			"bom-ref": address, "purl": address, "type": "library", "name": p.Name, "version": p.Version, "scope": "required",
			"licenses": []any{map[string]any{"license": map[string]string{"id": p.License}}},
		})
	}
	text, err := json.Marshal(parts)
	if err != nil {
		return nil, err
	}
	all["components"] = text
	return json.MarshalIndent(all, "", "  ")
}

// member is a file of an archive.
type member struct {
	name string
	text []byte
	mode os.FileMode
}

// members returns the files of an archive, by name.
func (r *release) members(ctx context.Context, program string) ([]member, error) {
	var all []member
	add := func(name, from string, mode os.FileMode) error {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		all = append(all, member{name, text, mode})
		return nil
	}
	if err := add(filepath.Base(program), program, 0o755); err != nil {
		return nil, err
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"} {
		if err := add(name, name, 0o644); err != nil {
			return nil, err
		}
	}
	packages, err := consolePackages(".")
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		all = append(all, member{path.Join("licences", "npm", p.Name+"@"+p.Version, "LICENSE"), []byte(p.Text), 0o644})
	}
	licences, err := licencesOf(ctx, program)
	if err != nil {
		return nil, err
	}
	for name, from := range licences {
		if err := add(path.Join("licences", name), from, 0o644); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b member) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

var licenceNames = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying|notice|patents)`)

// licencesOf returns the files with licences of all modules in the program, and of
// Go. A module without one is an error.
func licencesOf(ctx context.Context, program string) (map[string]string, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	root, err := output(ctx, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{"go": strings.TrimSpace(root)}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		dir, err := output(ctx, nil, "go", "list", "-m", "-f", "{{.Dir}}", m.Path)
		if err != nil {
			return nil, err
		}
		dirs[m.Path+"@"+m.Version] = strings.TrimSpace(dir)
	}
	found := map[string]string{}
	for module, dir := range dirs {
		files, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		n := 0
		for _, f := range files {
			if !f.IsDir() && licenceNames.MatchString(f.Name()) {
				found[path.Join(module, f.Name())] = filepath.Join(dir, f.Name())
				n++
			}
		}
		if n == 0 {
			return nil, fmt.Errorf("%s has no file with a licence in %s", module, dir)
		}
	}
	return found, nil
}

func (r *release) tarball(w io.Writer, top string, members []member) error {
	packed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(packed)
	for _, m := range members {
		header := &tar.Header{Name: path.Join(top, m.name), Size: int64(len(m.text)), Mode: int64(m.mode), ModTime: r.at, Format: tar.FormatPAX}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if _, err := t.Write(m.text); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), packed.Close())
}

func (r *release) zip(w io.Writer, top string, members []member) error {
	z := zip.NewWriter(w)
	for _, m := range members {
		header := &zip.FileHeader{Name: path.Join(top, m.name), Method: zip.Deflate, Modified: r.at}
		header.SetMode(m.mode)
		f, err := z.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := f.Write(m.text); err != nil {
			return err
		}
	}
	return z.Close()
}

// output runs a command and returns what it prints.
func output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var said, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &trouble
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, args[0], err, trouble.String())
	}
	return said.String(), nil
}
