// Package code finds the functions that the steps of models name.
package code

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Names knows the sources of the packages of a folder.
type Names struct {
	root    string
	sources map[string]string // by package
}

// In returns the names of the packages in a folder.
func In(root string) *Names { return &Names{root: root, sources: map[string]string{}} }

// Check returns an error for each of the names that does not exist. A name is a function
// (package.Function), a method or field (package.Type.Member), or the path of a file. A
// package is named by its path in the folder.
func (n *Names) Check(names string) (missing []error) {
	for _, name := range strings.Fields(names) {
		if _, err := os.Stat(filepath.Join(n.root, name)); err == nil {
			continue // a file
		}
		pkg, symbol, _ := strings.Cut(name, ".")
		if !declares(n.source(pkg), symbol) {
			missing = append(missing, fmt.Errorf("%s has no %s: name the code that takes this step now", pkg, symbol))
		}
	}
	return missing
}

// source returns the source of a package without its tests.
func (n *Names) source(pkg string) string {
	if n.sources[pkg] == "" {
		files, _ := filepath.Glob(filepath.Join(n.root, pkg, "*.go"))
		for _, path := range files {
			if text, err := os.ReadFile(path); err == nil && !strings.HasSuffix(path, "_test.go") {
				n.sources[pkg] += string(text)
			}
		}
	}
	return n.sources[pkg]
}

// declares reports whether a source that gofmt has formatted declares a symbol.
func declares(source, symbol string) bool {
	of, member, isMember := strings.Cut(symbol, ".")
	if !isMember {
		return regexp.MustCompile(`(?m)^(func|type|var|const|\t) ?` + symbol + `\b`).MatchString(source)
	}
	members := regexp.MustCompile(`(?ms)^type ` + of + `\b[^\n]* (struct|interface) \{\n.*?^\}`).FindString(source)
	return regexp.MustCompile(`(?m)^func \((\w+ )?\*?`+of+`(\[[^)]*)?\) `+member+`\b`).MatchString(source) ||
		regexp.MustCompile(`(?m)^\t(\w+, )*`+member+`\b`).MatchString(members)
}
