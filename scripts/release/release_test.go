package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestArchives(t *testing.T) {
	t.Parallel()
	r := release{at: time.Date(2026, 11, 24, 1, 2, 4, 0, time.UTC)}
	members := []member{{"LICENSE", []byte("free\n"), 0o644}, {"largesse", []byte("\x7fELF"), 0o755}}
	want := []entry{{"top/LICENSE", "free\n", 0o644, r.at}, {"top/largesse", "\x7fELF", 0o755, r.at}}

	twice := func(write func(io.Writer, string, []member) error) []byte {
		t.Helper()
		var first, second bytes.Buffer
		fixture.OK(t, write(&first, "top", members))
		if err := write(&second, "top", members); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatalf("the second archive has other bytes (%v)", err)
		}
		return first.Bytes()
	}

	packed := twice(r.zip)
	z := fixture.Must(zip.NewReader(bytes.NewReader(packed), int64(len(packed))))(t)
	var got []entry
	for _, f := range z.File {
		content := fixture.Must(f.Open())(t)
		text := fixture.Must(io.ReadAll(content))(t)
		got = append(got, entry{f.Name, string(text), f.Mode().Perm(), f.Modified.UTC()})
	}
	fixture.Equal(t, want, got)

	got = unpack(t, twice(r.tarball))
	fixture.Equal(t, want, got)
}

func TestCheckOfTheVersion(t *testing.T) {
	t.Parallel()
	for version, good := range map[string]bool{
		"v1.2.3": true, "v1.2.3-rc.1": true, "": false, "1.2.3": false, "v1.2": false, "v1.2.3 -X main.evil=1": false, "v1.2.3\n": false,
	} {
		r := release{version: version}
		if err := r.check(nil); (err == nil) != good {
			t.Errorf("version %q: %v", version, err)
		}
	}
	if err := (&release{version: "v1.2.3"}).check([]string{"linux"}); err == nil {
		t.Error("an argument is taken")
	}
}

// TestConsolePackages checks that the packages in the console have their licences, and are in an SBOM
// in which nothing else changes.
func TestConsolePackages(t *testing.T) {
	t.Parallel()
	packages := fixture.Must(consolePackages("../.."))(t)
	var names []string
	for _, p := range packages {
		names = append(names, p.Name)
		permits := map[string]string{"MIT": "Permission is hereby granted", "BSD-3-Clause": "Redistribution and use"}[p.License]
		if permits == "" || !strings.Contains(p.Text, permits) {
			t.Errorf("%+v", p)
		}
	}
	fixture.Equal(t, []string{
		"@formatjs/fast-memoize", "@formatjs/icu-messageformat-parser", "@formatjs/icu-skeleton-parser", "clsx", "intl-messageformat", "openapi-fetch", "svelte",
		"tailwindcss", "uplot",
	}, names)
	got, err := withPackages([]byte(`{"version":1,"components":[{"name":"a"}]}`), []npmPackage{{Name: "@b/c", Version: "1.2.3", License: "ISC"}})
	want := `{"components": [{"name": "a"}, {"bom-ref": "pkg:npm/%40b/c@1.2.3", "licenses": [{"license": {"id": "ISC"}}], "name": "@b/c",` +
		` "purl": "pkg:npm/%40b/c@1.2.3", "scope": "required", "type": "library", "version": "1.2.3"}], "version": 1}`
	var a, b any
	fixture.OK(t, errors.Join(err, json.Unmarshal(got, &a), json.Unmarshal([]byte(want), &b)))
	fixture.Equal(t, b, a)
	if _, err := withPackages([]byte(`{}`), packages); err == nil {
		t.Error("a file that is no SBOM gives no error")
	}
}

// entry is a file of an archive, as it is unpacked.
type entry struct {
	Name, Text string
	Mode       os.FileMode
	At         time.Time
}

// unpack returns the files of a tar.gz archive.
func unpack(t *testing.T, packed []byte) []entry {
	t.Helper()
	plain := fixture.Must(gzip.NewReader(bytes.NewReader(packed)))(t)
	var all []entry
	for archive := tar.NewReader(plain); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text := fixture.Must(io.ReadAll(archive))(t)
		all = append(all, entry{h.Name, string(text), h.FileInfo().Mode().Perm(), h.ModTime.UTC()})
	}
}
