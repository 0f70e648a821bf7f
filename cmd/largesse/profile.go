package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/largesse/largesse/client"
)

const keyMax = 10_000 // bytes of an API key that is read from stdin

func (c *cli) profileCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "profile",
		Aliases: []string{"profiles"},
		Short:   "Name servers, each with its API key, and choose one",
		Long: `Name servers, each with its API key, and choose one for all commands that talk to a
server. Profiles are stored in largesse/profiles.json below XDG_CONFIG_HOME or
~/.config, readable by you only.

A command takes each value from its flags (--server, --api-key, --api-key-file,
--ca-file), then from the profile of --profile, then from LARGESSE_SERVER and the
like, then from the profile of LARGESSE_PROFILE, or else of profile use. The key of a
profile is sent to the server of that profile only.`,
		Example: `  largesse profile add production --server https://rewards.example.com
  largesse profile use production
  largesse profile list`,
	}, c.profileAddCommand(), c.profileListCommand(), c.profileUseCommand(), c.profileShowCommand(), c.profileRemoveCommand())
}

func (c *cli) profileAddCommand() *cobra.Command {
	var (
		p            profile
		replace, use bool
	)
	cmd := &cobra.Command{
		Use:   "add NAME --server URL",
		Short: "Add a profile",
		Long: `Add a profile. --api-key-file names the file with the API key, which is read when a
command needs it, so you can replace the key there; - reads the key from stdin and
stores it in the profile. Without the flag, a terminal asks for the key; press Enter
for none.`,
		Example: `  largesse profile add local --server http://127.0.0.1:8080
  largesse profile add production --server https://rewards.example.com --api-key-file key.txt --use`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if p.Server == "" {
				return wrongUse("--server is missing; see %s --help", cmd.CommandPath())
			}
			if _, err := client.New(p.Server, client.Options{}); err != nil {
				return wrongUse("%v", err)
			}
			all, err := c.loadProfiles()
			if err != nil {
				return err
			}
			if _, ok := all.Profiles[name]; ok && !replace {
				return wrongUse("there is a profile %s; add --replace to replace it", name)
			}
			if err := c.completeProfile(&p); err != nil {
				return err
			}
			all.Profiles[name] = p
			if use {
				all.Current = name
			}
			hint := "use it with: largesse profile use " + name
			if all.Current == name {
				hint = "commands use it"
			}
			err = c.saveProfiles(all)
			return c.show(shownProfile(name, all), err, fmt.Sprintf("profile %s is stored; %s", name, hint))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&p.Server, "server", "", "URL of the server")
	flags.StringVar(&p.APIKeyFile, "api-key-file", "", "file with the API key; -: read the key from stdin")
	flags.StringVar(&p.CAFile, "ca-file", "", "PEM file with the authority that signed the server's certificate")
	flags.BoolVar(&replace, "replace", false, "replace a profile of this name")
	flags.BoolVar(&use, "use", false, "also make it the current profile")
	return cmd
}

func (c *cli) completeProfile(p *profile) error {
	var err error
	if p.APIKeyFile == "-" || p.APIKeyFile == "" {
		p.APIKey, err = c.askForKey(p.APIKeyFile == "-", p.Server)
		p.APIKeyFile = ""
	} else if _, err = keyOf(p.APIKeyFile); err == nil {
		p.APIKeyFile, err = filepath.Abs(p.APIKeyFile)
	}
	if err != nil || p.CAFile == "" {
		return err
	}
	if _, err := authorities(p.CAFile); err != nil {
		return err
	}
	p.CAFile, err = filepath.Abs(p.CAFile)
	return err
}

// askForKey reads an API key from stdin. On a terminal it asks, and does not show
// what is typed. Elsewhere it reads only if required.
func (c *cli) askForKey(required bool, server string) (string, error) {
	var text []byte
	f, ok := c.stdin.(*os.File)
	var err error
	switch {
	case ok && isatty.IsTerminal(f.Fd()):
		fmt.Fprintf(c.stderr, "API key for %s (not shown; Enter: none): ", printable(server))
		text, err = term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(c.stderr)
	case required:
		text, err = bufio.NewReader(io.LimitReader(c.stdin, keyMax)).ReadBytes('\n')
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the API key: %w", err)
	}
	key := strings.TrimSpace(string(text))
	if key == "" && required {
		return "", wrongUse("stdin has no API key")
	}
	return key, nil
}

type profileView struct {
	Name       string `json:"name"`
	Server     string `json:"server"`
	HasAPIKey  bool   `json:"hasApiKey"`
	APIKeyFile string `json:"apiKeyFile,omitempty"`
	CAFile     string `json:"caFile,omitempty"`
	Current    bool   `json:"current"` // of profile use
}

func shownProfile(name string, all profiles) profileView {
	p := all.Profiles[name]
	server := p.Server
	if cl, err := client.New(server, client.Options{}); err == nil {
		server = cl.Server()
	}
	return profileView{
		Name: name, Server: server, HasAPIKey: p.APIKey != "" || p.APIKeyFile != "", APIKeyFile: p.APIKeyFile, CAFile: p.CAFile,
		Current: name == all.Current,
	}
}

func (v profileView) key() string {
	switch {
	case v.APIKeyFile != "":
		return v.APIKeyFile
	case v.HasAPIKey:
		return "stored"
	}
	return "none"
}

func (c *cli) profileListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the profiles, without their keys",
		Example: inBothForms("profile list"),
		RunE: func(*cobra.Command, []string) error {
			all, err := c.loadProfiles()
			var views []profileView
			for _, name := range slices.Sorted(maps.Keys(all.Profiles)) {
				views = append(views, shownProfile(name, all))
			}
			return printList(c, each(views, err), listing[profileView]{
				header: []string{"NAME", "CURRENT", "SERVER", "API KEY"},
				row:    func(v profileView) []string { return []string{v.Name, yesNo(v.Current), v.Server, v.key()} },
				empty:  "there are no profiles; add one: largesse profile add --help",
				cuts:   []string{"API KEY", "SERVER"},
			})
		},
	}
}

func (c *cli) profileUseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "use NAME",
		Short: "Choose the profile of commands without --profile; none: no profile",
		Example: `  largesse profile use production
  largesse profile use none`,
		Args: exactly([]argument{{name: "a profile name or " + none}}),
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := c.loadProfiles()
			if err != nil {
				return err
			}
			name, said := "", "no profile is current"
			if args[0] != none {
				name, said = args[0], "commands use "+shownProfile(args[0], all).Server
				if err := all.has(name); err != nil {
					return err
				}
			}
			all.Current = name
			err = c.saveProfiles(all)
			return c.show(map[string]string{"current": all.Current}, err, said)
		},
	}
	cmd.ValidArgsFunction = c.offerProfiles
	return cmd
}

func (c *cli) profileShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show NAME",
		Short:   "Show a profile, without its key",
		Example: inBothForms("profile show production"),
		RunE: func(_ *cobra.Command, args []string) error {
			all, _, err := c.profileNamed(args[0])
			return showBy(c, shownProfile(args[0], all), err, c.printProfile)
		},
	}
	cmd.ValidArgsFunction = c.offerProfiles
	return cmd
}

func (c *cli) printProfile(v profileView) error {
	d := c.details()
	d.add("profile", v.Name)
	d.add("server", v.Server)
	d.add("API key", v.key())
	d.add("CA file", cmp.Or(v.CAFile, "those of the system"))
	d.add("current", yesNo(v.Current))
	return d.flush()
}

func (c *cli) profileRemoveCommand() *cobra.Command {
	cmd := c.yesFlag(&cobra.Command{
		Use:     "remove NAME",
		Short:   "Remove a profile with its stored key",
		Example: inBothForms("profile remove production --yes"),
		RunE: func(_ *cobra.Command, args []string) error {
			all, _, err := c.profileNamed(args[0])
			if err != nil {
				return err
			}
			if err := c.confirm("remove profile " + args[0] + " with its stored key"); err != nil {
				return err
			}
			delete(all.Profiles, args[0])
			if all.Current == args[0] {
				all.Current = ""
			}
			err = c.saveProfiles(all)
			return c.show(map[string]string{"removed": args[0]}, err, fmt.Sprintf("profile %s is removed", args[0]))
		},
	})
	cmd.ValidArgsFunction = c.offerProfiles
	return cmd
}

func (c *cli) offerProfiles(_ *cobra.Command, given []string, begun string) ([]string, cobra.ShellCompDirective) {
	all, err := c.loadProfiles()
	if err != nil || len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all.Profiles)) {
		if strings.HasPrefix(name, begun) {
			out = append(out, cobra.CompletionWithDesc(printable(name), printable(shownProfile(name, all).Server)))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

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
	err = replaceFile(path, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("store the profiles: %w", err)
	}
	return nil
}

// replaceFile writes a file that its user alone may read. Until all of it is written, the
// file that was there before stays. What is no file, such as /dev/null, is written to.
func replaceFile(path string, write func(io.Writer) error) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(file), file.Close())
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".largesse-*") // mode 0600
	if err != nil {
		return err
	}
	err = write(file)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// profileNamed reads all profiles, and returns one of them.
func (w world) profileNamed(name string) (profiles, profile, error) {
	all, err := w.loadProfiles()
	if err == nil {
		err = all.has(name)
	}
	return all, all.Profiles[name], err
}

func (all profiles) has(name string) error {
	if _, ok := all.Profiles[name]; !ok {
		return wrongUse("there is no profile %q; see largesse profile list", name)
	}
	return nil
}

// target chooses the server. Flags override the profile of --profile, which
// overrides the environment, which overrides the current profile. An API key and a
// certificate authority of a profile are for the server of that profile only.
func (c *cli) target() (profile, error) {
	t := c.flags
	if c.profile != "" {
		if err := c.useProfile(&t, c.profile); err != nil {
			return t, err
		}
	}
	if t.APIKey == "" && t.APIKeyFile == "" {
		if t.APIKey = c.env("LARGESSE_API_KEY"); t.APIKey == "" {
			t.APIKeyFile = c.env("LARGESSE_API_KEY_FILE")
		}
	}
	t.CAFile = cmp.Or(t.CAFile, c.env("LARGESSE_CA_FILE"))
	t.Server = cmp.Or(t.Server, c.env("LARGESSE_SERVER"))
	if t.Server == "" {
		return t, c.useCurrent(&t)
	}
	return t, nil
}

// useCurrent completes a target by the profile of LARGESSE_PROFILE or profile use,
// if there is one.
func (c *cli) useCurrent(t *profile) error {
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

func (c *cli) useProfile(t *profile, name string) error {
	_, p, err := c.profileNamed(name)
	if err != nil {
		return err
	}
	if t.Server != "" && t.Server != p.Server {
		return nil
	}
	t.Server = p.Server
	if t.APIKey == "" && t.APIKeyFile == "" {
		t.APIKey, t.APIKeyFile = p.APIKey, p.APIKeyFile
	}
	t.CAFile = cmp.Or(t.CAFile, p.CAFile)
	return nil
}
