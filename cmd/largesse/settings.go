package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/largesse/largesse/internal/config"
)

// settingAnnotation marks the flags that are settings. Its value is their
// group.
const settingAnnotation = "largesse_setting_group"

// settingFlags holds the settings of a command: each setting is a flag, and
// --config names a file with more.
type settingFlags struct {
	cmd  *cobra.Command
	file string
}

// settingValue is the flag of one setting. It keeps the text unparsed, because
// one parser reads the settings of all sources.
type settingValue struct {
	setting config.Setting
	text    string
	given   bool
}

func (v *settingValue) String() string { return v.text }
func (v *settingValue) Type() string   { return string(v.setting.Kind) }

// Set takes a value. If a list is given several times, its values add up.
func (v *settingValue) Set(text string) error {
	if v.given && v.setting.Kind == config.KindList {
		text = v.text + "," + text
	}
	v.text, v.given = text, true
	return nil
}

func withSettings(cmd *cobra.Command) *settingFlags {
	s := &settingFlags{cmd: cmd}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&s.file, "config", "", "YAML file with settings; the environment and flags override it")
	for _, setting := range config.Settings {
		flag := flags.VarPF(&settingValue{setting: setting, text: setting.Default}, setting.Flag(), "", setting.Doc)
		flag.Annotations = map[string][]string{settingAnnotation: {setting.Group()}}
		if setting.Kind == config.KindBool {
			flag.NoOptDefVal = "true"
		}
		if setting.Words != nil {
			complete(cmd, setting.Flag(), setting.Words...)
		}
	}
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "listen" {
			name = "http-listen"
		}
		return pflag.NormalizedName(name)
	})
	complete(cmd, "roles", config.Roles...)
	cmd.SetUsageFunc(groupedUsage)
	return s
}

// params returns where the settings of this command come from.
func (s *settingFlags) params(w world) config.LoadParams {
	given := map[string]string{}
	s.cmd.Flags().Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(*settingValue); ok {
			given[v.setting.Name] = v.text
		}
	})
	return config.LoadParams{File: s.file, Environ: w.environ, Flags: given}
}

// load reads the settings from all sources. It prints warnings to stderr, one
// per line.
func (s *settingFlags) load(w world) (config.Config, error) {
	cfg, warnings, err := config.Load(s.params(w))
	for _, warning := range warnings {
		fmt.Fprintln(w.stderr, "largesse: warning: "+printable(warning))
	}
	if err != nil {
		return cfg, &usageError{err.Error()} // also a missing file, or one that is not YAML
	}
	return cfg, nil
}

// groupedUsage prints cobra's usage with the settings' flags in groups.
func groupedUsage(cmd *cobra.Command) error {
	const own = "Flags"
	groups := map[string]*pflag.FlagSet{own: pflag.NewFlagSet(own, pflag.ContinueOnError)}
	order := []string{own}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if cmd.InheritedFlags().Lookup(f.Name) != nil {
			return
		}
		title := own
		if group := f.Annotations[settingAnnotation]; len(group) > 0 {
			title = "Settings of " + group[0]
		}
		if groups[title] == nil {
			groups[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
			groups[title].SortFlags = false
			order = append(order, title)
		}
		groups[title].AddFlag(f)
	})
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
	for _, title := range order {
		fmt.Fprintf(&b, "\n%s:\n%s", title, groups[title].FlagUsages())
	}
	fmt.Fprintf(&b, "\nGlobal Flags:\n%s", cmd.InheritedFlags().FlagUsages())
	b.WriteString("\n--listen is short for --http-listen. You can also put each setting into the file, or\ninto the environment, for example as LARGESSE_MONEY_URL.\n")
	_, err := io.WriteString(cmd.OutOrStdout(), b.String())
	return err
}
