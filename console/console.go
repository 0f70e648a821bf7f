// Package console holds the built web console. Its sources are in the same folder; `make
// console` builds dist, which is committed, so that building Largesse needs only Go.
package console

import (
	"embed"
	"encoding/json"
	"io/fs"
)

//go:embed dist
var dist embed.FS

//go:embed messages
var messages embed.FS

// Files returns the console: index.html, drop/index.html and the folder assets.
func Files() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic("console: " + err.Error()) // the name above is wrong
	}
	return files
}

// Texts returns the texts of the console in a language, by their keys, or nil.
func Texts(language string) map[string]string {
	text, err := messages.ReadFile("messages/" + language + ".json")
	if err != nil {
		return nil
	}
	var all map[string]string
	if err := json.Unmarshal(text, &all); err != nil {
		panic("console: " + err.Error()) // a file above is broken
	}
	return all
}
