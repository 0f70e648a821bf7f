package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
)

type profile struct {
	Server string `json:"server"`
	APIKey string `json:"apiKey,omitempty"`
	// APIKeyFile is the absolute path of a file with the key, instead of APIKey.
	APIKeyFile string `json:"apiKeyFile,omitempty"`
	CAFile     string `json:"caFile,omitempty"` // absolute path
}

type profiles struct {
	Current  string             `json:"current,omitempty"` // of profile use; empty: none
	Profiles map[string]profile `json:"profiles"`
}

var profileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func checkProfileName(name string) error {
	if !profileName.MatchString(name) || name == none {
		return wrongUse("%q is not a profile name: it must have 1 to 64 letters, digits, dots, - and _, begin with a letter or digit, and not be %q", name, none)
	}
	return nil
}

// profileFile returns the path of the profile file, below the user's folder for
// configuration.
func (w world) profileFile() (string, error) {
	dir, home := w.env("XDG_CONFIG_HOME"), w.env("HOME")
	switch {
	case filepath.IsAbs(dir):
	case runtime.GOOS == "windows" && w.env("AppData") != "":
		dir = w.env("AppData")
	case home != "":
		dir = filepath.Join(home, ".config")
	default:
		return "", wrongUse("profiles need a folder: set HOME or XDG_CONFIG_HOME")
	}
	return filepath.Join(dir, "largesse", "profiles.json"), nil
}

// loadProfiles reads the profile file. A file that does not exist has no
// profiles. A file that others can read is refused, because it may have API keys.
func (w world) loadProfiles() (profiles, error) {
	all := profiles{Profiles: map[string]profile{}}
	path, err := w.profileFile()
	if err != nil {
		return all, err
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, wrongUse("open the profiles: %v", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return all, wrongUse("open the profiles: %v", err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return all, wrongUse("other users may open the profiles in %s, which can have API keys: run chmod 600 %[1]s", path)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return all, wrongUse("read the profiles: %v", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields() // a later version's fields would be lost when the file is written
	if err := d.Decode(&all); err != nil {
		return all, wrongUse("parse the profiles in %s: %v; correct or remove the file", path, err)
	}
	if all.Profiles == nil {
		all.Profiles = map[string]profile{}
	}
	return all, nil
}

// saveProfiles replaces the profile file. A crash leaves the old or the new file.
func (w world) saveProfiles(all profiles) error {
	path, err := w.profileFile()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("store the profiles: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".profiles-*") // mode 0600
	if err != nil {
		return fmt.Errorf("store the profiles: %w", err)
	}
	_, err = file.Write(append(text, '\n'))
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("store the profiles: %w", errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}

func (all profiles) named(name string) (profile, error) {
	p, ok := all.Profiles[name]
	if !ok {
		return p, wrongUse("there is no profile %q; see largesse profile list", name)
	}
	return p, nil
}

// target is the server that a command talks to, and what it needs for that.
type target struct {
	server, apiKey, apiKeyFile, caFile string
}

// target chooses the server. Flags override the profile of --profile, which
// overrides the environment, which overrides the current profile. An API key and a
// certificate authority of a profile are for the server of that profile only.
func (c *cli) target() (target, error) {
	t := target{server: c.server, apiKey: c.apiKey, apiKeyFile: c.apiKeyFile, caFile: c.caFile}
	if c.profile != "" {
		if err := c.useProfile(&t, c.profile); err != nil {
			return t, err
		}
	}
	if t.apiKey == "" && t.apiKeyFile == "" {
		if t.apiKey = c.env("LARGESSE_API_KEY"); t.apiKey == "" {
			t.apiKeyFile = c.env("LARGESSE_API_KEY_FILE")
		}
	}
	if t.caFile == "" {
		t.caFile = c.env("LARGESSE_CA_FILE")
	}
	if t.server == "" {
		t.server = c.env("LARGESSE_SERVER")
	}
	if t.server == "" {
		return t, c.useCurrent(&t)
	}
	return t, nil
}

// useCurrent completes a target by the profile of LARGESSE_PROFILE or profile use,
// if there is one.
func (c *cli) useCurrent(t *target) error {
	if name := c.env("LARGESSE_PROFILE"); name != "" {
		return c.useProfile(t, name)
	}
	if _, err := c.profileFile(); err != nil {
		return nil //nolint:nilerr // without a folder there are no profiles
	}
	all, err := c.loadProfiles()
	if err != nil || all.Current == "" {
		return err
	}
	return c.useProfile(t, all.Current)
}

func (c *cli) useProfile(t *target, name string) error {
	all, err := c.loadProfiles()
	if err != nil {
		return err
	}
	p, err := all.named(name)
	if err != nil {
		return err
	}
	if t.server != "" && t.server != p.Server {
		return nil
	}
	t.server = p.Server
	if t.apiKey == "" && t.apiKeyFile == "" {
		t.apiKey, t.apiKeyFile = p.APIKey, p.APIKeyFile
	}
	if t.caFile == "" {
		t.caFile = p.CAFile
	}
	return nil
}
