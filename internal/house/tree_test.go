package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// sourceFile is a parsed Go file of this module.
type sourceFile struct {
	path string // from the root, e.g. internal/queue/queue.go
	ast  *ast.File
	set  *token.FileSet
}

func (f sourceFile) room() string { return path.Dir(f.path) }
func (f sourceFile) test() bool   { return strings.HasSuffix(f.path, "_test.go") }

func (f sourceFile) importPaths(t *testing.T) []string {
	var all []string
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatalf("%s: import %s: %v", f.path, spec.Path.Value, err)
		}
		all = append(all, p)
	}
	return all
}

var readTree = sync.OnceValues(func() ([]sourceFile, error) {
	var files []sourceFile
	set := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			_, statErr := os.Stat(filepath.Join(p, "go.mod"))
			ownModule := p != "." && statErr == nil
			if p != "." && (ownModule || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasPrefix(name, ".") {
			return nil
		}
		file, err := parser.ParseFile(set, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, sourceFile{filepath.ToSlash(p), file, set})
		return nil
	})
	return files, err
})

// tree reads every Go file of the module, whatever its build tags. It does not
// run the go command, so that the test cache knows the files that the result depends
// on.
func tree(t *testing.T) []sourceFile {
	t.Helper()
	files, err := readTree()
	if err != nil {
		t.Fatalf("reading the source: %v", err)
	}
	return files
}
