// Package console holds the built web console. Its sources are in the same folder; `make
// console` builds dist, which is committed, so that building Largesse needs only Go.
package console

import (
	"embed"
	"io/fs"
)

//go:embed dist
var dist embed.FS

// Files returns the console: index.html, drop/index.html and the folder assets.
func Files() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic("console: " + err.Error()) // the name above is wrong
	}
	return files
}
