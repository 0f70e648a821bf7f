package config

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/largesse/largesse/internal/webhook"
)

// SettingValue is a setting in a Config, without secrets.
type SettingValue struct {
	Name   string `json:"name"`
	Value  string `json:"value"`  // with secrets masked
	Source string `json:"source"` // "default", or a file, variable or flag
}

// Values returns every setting with its value and source, in the order of the docs.
func (c Config) Values() []SettingValue {
	values := make([]SettingValue, len(Settings))
	for i, s := range Settings {
		values[i] = SettingValue{Name: s.Name, Value: s.Shown(c.Text(s.Name)), Source: c.Source(s.Name)}
	}
	return values
}

// Masked returns the Config as a YAML file with secrets masked, and the source of each
// value as a comment.
func (c Config) Masked() (string, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	groups := map[string]*yaml.Node{"": root}
	for _, s := range Settings {
		value := &yaml.Node{}
		shown := c.value(s.Name)
		switch s.Kind {
		case KindText:
			shown = s.Shown(settingText(shown))
		case KindDuration:
			shown = settingText(shown)
		}
		if err := value.Encode(shown); err != nil {
			return "", fmt.Errorf("encoding the setting %s failed: %w", s.Name, err)
		}
		if s.Kind == KindList {
			value.Style = yaml.FlowStyle
		}
		value.LineComment = "# " + c.Source(s.Name)
		addNode(groups, s.Name, value)
	}
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return "", fmt.Errorf("encoding the settings failed: %w", err)
	}
	return b.String(), nil
}

// addNode adds a node to the mapping of its group, which it creates if it is missing.
func addNode(groups map[string]*yaml.Node, name string, n *yaml.Node) {
	dot := strings.LastIndexByte(name, '.')
	group, key := name[:max(dot, 0)], name[dot+1:]
	if groups[group] == nil {
		groups[group] = &yaml.Node{Kind: yaml.MappingNode}
		addNode(groups, group, groups[group])
	}
	groups[group].Content = append(groups[group].Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, n)
}

// Source returns where the value of a setting came from: SourceDefault, or a file,
// variable or flag.
func (c Config) Source(name string) string {
	return cmp.Or(c.sources[name], SourceDefault)
}

// Shown returns a value with its secrets masked.
func (s Setting) Shown(text string) string {
	switch {
	case !s.Secret:
		return text
	case s.Name == "money.auth-header":
		return maskHeader(text)
	case s.Name == "webhook.secret" && text != "":
		return mask
	case s.Name == "money.request.path" || s.Name == "money.lookup.path":
		return pathSecret.ReplaceAllString(text, "${1}"+mask)
	case s.Name == "notify.slack-url":
		return webhook.MaskURL(text)
	case s.Name == "money.request.body":
		return maskExpression(text)
	}
	return maskSecrets(text)
}

// mask replaces a secret, as in net/url.
const mask = "xxxxx"

var (
	addressStart = regexp.MustCompile(`(?:^|,)\s*[A-Za-z][A-Za-z0-9+.-]*://`)
	secretQuery  = regexp.MustCompile(`(?i)([?&][^=&]*(?:pass|pwd|secret|token|key|auth)[^=&]*=)[^&#]*`)
)

// pathSecret finds the literal value of a query parameter with such a name. A placeholder
// is no secret.
var pathSecret = regexp.MustCompile(`(?i)([?&][^=&{]*(?:pass|pwd|secret|token|key|auth)[^=&{]*=)[^&#{][^&#]*`)

var headerStart = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}: `)

// maskHeader masks the value of "Name: value". It masks any other text completely,
// because that may be the secret without its name.
func maskHeader(text string) string {
	if strings.TrimSpace(text) == "" {
		return text
	}
	return headerStart.FindString(text) + mask
}

// maskSecrets masks passwords in URLs, in lists of URLs and in malformed URLs. It
// masks any other text completely, because the position of the secret is unknown,
// as in "host=h password=p".
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

// maskAddress masks the secrets in what follows the scheme of one URL.
func maskAddress(scheme, rest string) string {
	rest = secretQuery.ReplaceAllString(rest, "${1}"+mask)
	// In a malformed URL, user and password may extend to the last @. Otherwise they
	// end before the path.
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
		user = mask // a token instead of a user
	}
	return user + rest[at:]
}
