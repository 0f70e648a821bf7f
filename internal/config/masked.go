package config

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// SettingValue is a setting as it stands in a Config, fit to be shown.
type SettingValue struct {
	Name   string `json:"name"`
	Value  string `json:"value"`  // secrets masked
	Source string `json:"source"` // "default", or which file, variable or flag
}

// Values lists every setting with its value and where it came from, in the
// order of the docs.
func (c Config) Values() []SettingValue {
	values := make([]SettingValue, len(Settings))
	for i, s := range Settings {
		values[i] = SettingValue{Name: s.Name, Value: s.Shown(c.Text(s.Name)), Source: c.Source(s.Name)}
	}
	return values
}

// Masked is the Config as a YAML file, with secrets masked and a comment
// behind each value that says where it came from.
func (c Config) Masked() (string, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	groups := map[string]*yaml.Node{"": root}
	for _, s := range Settings {
		group, key := "", s.Name
		if i := strings.LastIndexByte(s.Name, '.'); i >= 0 {
			group, key = s.Name[:i], s.Name[i+1:]
		}
		value := &yaml.Node{}
		shown := c.value(s.Name)
		switch s.Kind {
		case KindText:
			shown = s.Shown(settingText(shown))
		case KindDuration:
			shown = settingText(shown)
		}
		if err := value.Encode(shown); err != nil {
			return "", fmt.Errorf("writing the setting %s: %w", s.Name, err)
		}
		if s.Kind == KindList {
			value.Style = yaml.FlowStyle
		}
		value.LineComment = "# " + c.Source(s.Name)
		parent := groupNode(groups, group)
		parent.Content = append(parent.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
	}
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return "", fmt.Errorf("writing the settings: %w", err)
	}
	return b.String(), nil
}

// groupNode finds the mapping of a group, and makes it when it is the first
// time.
func groupNode(groups map[string]*yaml.Node, name string) *yaml.Node {
	if n, ok := groups[name]; ok {
		return n
	}
	parent, key := "", name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		parent, key = name[:i], name[i+1:]
	}
	n := &yaml.Node{Kind: yaml.MappingNode}
	above := groupNode(groups, parent)
	above.Content = append(above.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, n)
	groups[name] = n
	return n
}

// Source says where the value of a setting came from: SourceDefault, or which
// file, variable or flag.
func (c Config) Source(name string) string {
	if source, ok := c.sources[name]; ok {
		return source
	}
	return SourceDefault
}

// Shown is a value as people may see it.
func (s Setting) Shown(text string) string {
	switch {
	case !s.Secret:
		return text
	case s.Name == authHeaderSetting:
		return maskHeader(text)
	case s.Name == webhookSecretSetting:
		return maskWhole(text)
	}
	return maskSecrets(text)
}

// The secrets that are no addresses.
const (
	authHeaderSetting    = "money.auth-header"
	webhookSecretSetting = "webhook.secret"
)

// mask stands for a secret, as in net/url.
const mask = "xxxxx"

var (
	addressStart = regexp.MustCompile(`(?:^|,)\s*[A-Za-z][A-Za-z0-9+.-]*://`)
	secretQuery  = regexp.MustCompile(`(?i)([?&][^=&]*(?:pass|pwd|secret|token|key|auth)[^=&]*=)[^&#]*`)
)

var headerStart = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}: `)

// maskHeader hides the value of "Name: value". What is not of that form is
// hidden whole: it may be the secret without its name.
func maskHeader(text string) string {
	if strings.TrimSpace(text) == "" {
		return text
	}
	return headerStart.FindString(text) + mask
}

func maskWhole(text string) string {
	if text == "" {
		return text
	}
	return mask
}

// maskSecrets hides passwords in addresses, also in lists of them and in
// those that no parser would take. What is no address is hidden whole: nobody
// knows where in "host=h password=p" the secret begins.
func maskSecrets(text string) string {
	if strings.TrimSpace(text) == "" {
		return text
	}
	starts := addressStart.FindAllStringIndex(text, -1)
	if len(starts) == 0 {
		return mask
	}
	var b strings.Builder
	if before := text[:starts[0][0]]; before != "" {
		b.WriteString(maskSecrets(before))
	}
	for i, start := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		b.WriteString(text[start[0]:start[1]])
		b.WriteString(maskAddress(text[start[0]:start[1]], text[start[1]:end]))
	}
	return b.String()
}

// maskAddress masks what follows the scheme of one address.
func maskAddress(scheme, rest string) string {
	rest = secretQuery.ReplaceAllString(rest, "${1}"+mask)
	// The text up to the last @ is user and password where the address is
	// broken; where it is not, they end before the path.
	authority := rest
	_, broken := url.Parse(strings.TrimLeft(scheme, ", \t") + strings.TrimRight(rest, ", \t"))
	if broken == nil {
		if i := strings.IndexAny(rest, "/?#"); i >= 0 {
			authority = rest[:i]
		}
	}
	at := strings.LastIndexByte(authority, '@')
	switch {
	case at < 0 && broken != nil:
		return mask
	case at < 0:
		return rest
	}
	user, _, hasPassword := strings.Cut(authority[:at], ":")
	switch {
	case hasPassword:
		user += ":" + mask
	case !strings.Contains(scheme, "postgres"):
		user = mask // a token in place of a user
	}
	return user + rest[at:]
}
