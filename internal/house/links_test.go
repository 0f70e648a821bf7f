package house

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// pageLink is a link of a Markdown page: [text](target).
var pageLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// anchors returns the anchors that a Markdown page has: one for each heading,
// as GitHub makes them. A repeated heading gets a number.
func anchors(text []byte) map[string]bool {
	all := map[string]bool{}
	times := map[string]int{}
	fenced := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		heading := strings.TrimLeft(line, "#")
		if fenced || heading == line || !strings.HasPrefix(heading, " ") {
			continue
		}
		var anchor strings.Builder
		for _, r := range strings.ToLower(strings.TrimSpace(heading)) {
			switch {
			case r == ' ':
				anchor.WriteRune('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				anchor.WriteRune(r)
			}
		}
		name := anchor.String()
		if n := times[name]; n > 0 {
			all[fmt.Sprintf("%s-%d", name, n)] = true
		} else {
			all[name] = true
		}
		times[name]++
	}
	return all
}

// brokenLinks returns what is wrong with the links of a page.
func brokenLinks(page string, text []byte) []string {
	var wrong []string
	fenced := false
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		for _, match := range pageLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
			target, anchor, hasAnchor := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, content := page, text
			if target != "" {
				var err error
				file = path.Join(path.Dir(page), target)
				if strings.HasPrefix(target, "/") || strings.HasPrefix(file, "..") {
					wrong = append(wrong, fmt.Sprintf("%d: %s is outside the repository", i+1, match[1]))
					continue
				}
				if content, err = readTarget(file); err != nil {
					wrong = append(wrong, fmt.Sprintf("%d: %s: %v", i+1, match[1], err))
					continue
				}
			}
			if hasAnchor && !anchors(content)[anchor] {
				wrong = append(wrong, fmt.Sprintf("%d: %s has no heading for #%s", i+1, file, anchor))
			}
		}
	}
	return wrong
}

// readTarget reads the target of a link. A folder has no content.
func readTarget(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil || info.IsDir() {
		return nil, err
	}
	return os.ReadFile(name)
}

// TestLinks checks that every link between the pages of the repository leads
// to a file and a heading that exist.
func TestLinks(t *testing.T) {
	t.Parallel()
	links := 0
	proseFiles(t, func(name string, text []byte) {
		if filepath.Ext(name) != ".md" {
			return
		}
		links += len(pageLink.FindAll(text, -1))
		for _, wrong := range brokenLinks(name, text) {
			t.Errorf("%s:%s", name, wrong)
		}
	})
	if links < 50 {
		t.Errorf("only %d links were found", links)
	}
}
