package house

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// unclear maps words and phrases that this project does not use to what it
// writes instead. docs/glossary.md has the terms. A phrase may not cross
// punctuation.
var unclear = map[string]string{
	"he": "they, or the noun", "him": "them, or the noun", "his": "their, or the noun", "himself": "themselves, or the noun",
	"she": "they, or the noun", "her": "their, or the noun",
	"whoever": "name the actor", "whom": "name the actor",
	"anew":     "again",
	"beside":   "next to, or in addition to",
	"for good": "permanently",
	"asker":    "user, or caller", "askers": "users, or callers",
	"look-up": "lookup", "look-ups": "lookups",
	"seam": "interface", "seams": "interfaces",
	"far side": "provider", "far sides": "providers",
	"handover": "delivery, or dispatch", "handovers": "deliveries, or dispatches",
	"hand over": "deliver, or pass", "hands over": "delivers, or passes", "handed over": "delivered, or passed",
	"give back": "return", "gives back": "returns", "given back": "returned", "gave back": "returned", "giving back": "returning",
	"in hand": "pending",
	"mend":    "repair", "mends": "repairs", "mended": "repaired", "mending": "repairing",
	"goes on": "continues", "went on": "continued",
	"what became of": "how … ended",
	"lapse":          "expire", "lapses": "expires", "lapsed": "expired", "lapsing": "expiring",
	"foreign":  "external (only a foreign key is foreign)",
	"work off": "process", "works off": "processes", "worked off": "processed", "working off": "processing",
	"sign of life": "heartbeat", "signs of life": "heartbeats",
	"stands still": "makes no progress", "stand still": "make no progress", "stood still": "made no progress",
	"let go of": "release", "lets go of": "releases", "letting go of": "releasing",
	"lever": "control", "levers": "controls",
	"rooms":          "packages",
	"once a second":  "once per second",
	"twice a second": "twice per second",
	"times a second": "times per second",
	"rows a second":  "rows per second",
	"calls a second": "calls per second",
	"bytes a second": "bytes per second", "requests a second": "requests per second", "coupons a second": "coupons per second",
	"payouts a second": "payouts per second", "issued a second": "issued per second", "decided a second": "decided per second",
	"tells of": "reports", "told of": "reported",
	"so many seconds": "name the setting, or the time",
}

// promised are names of settings and error codes that have an unclear word.
var promised = regexp.MustCompile(`(?i)hold[_-]?lapsed|lapsed[_-]?holds|inHand`)

// elsewhere matches references to pages that are not in this repository.
var elsewhere = regexp.MustCompile(`(?i)\b(design|contract|language|house|findings|pitfalls|(payout|coupon)-protocol2?)\.md\b|\bseeds/|\b(design|contract|seed|section) §|(^|[\s(/])shared/|\bseeds? 00\d|\bTest\w+ is \d\.\d`)

// trailer matches a name in brackets that follows the last sentence.
var trailer = regexp.MustCompile(`(^|[.:;!?)])\s*\[[A-Z@][\w.@/ ,-]*\]$`)

// proseLine is a line of prose and where it is.
type proseLine struct {
	number int
	text   string
}

// proseWord is a word of a block. last reports that punctuation follows it.
type proseWord struct {
	text string
	line int
	last bool
}

// wordsOf splits a block into its lower-case words.
func wordsOf(block []proseLine) []proseWord {
	var words []proseWord
	for _, line := range block {
		var word strings.Builder
		end := func() {
			if text := strings.Trim(word.String(), "-'’_"); text != "" {
				words = append(words, proseWord{text: strings.ToLower(text), line: line.number})
			}
			word.Reset()
		}
		for _, r := range line.text {
			switch {
			case unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_'’", r):
				word.WriteRune(r)
			default:
				end()
				if !unicode.IsSpace(r) && len(words) > 0 {
					words[len(words)-1].last = true
				}
			}
		}
		end()
	}
	return words
}

// checkProse returns what is wrong with a block of prose, such as a comment or
// a paragraph, as "line: complaint".
func checkProse(block []proseLine) []string {
	var wrong []string
	words := wordsOf(block)
	for i, first := range words {
		phrase := ""
		for n := range 4 {
			if i+n >= len(words) {
				break
			}
			phrase = strings.TrimPrefix(phrase+" "+words[i+n].text, " ")
			instead, banned := unclear[phrase]
			if next := i + n + 1; phrase == "foreign" && next < len(words) && strings.HasPrefix(words[next].text, "key") {
				banned = false
			}
			if banned {
				wrong = append(wrong, fmt.Sprintf("%d: %q: write %s", first.line, phrase, instead))
			}
			if words[i+n].last {
				break
			}
		}
		if isNumber(first.text) && i+2 < len(words) && words[i+1].text == "a" && words[i+2].text == "second" && !first.last {
			wrong = append(wrong, fmt.Sprintf("%d: %q: write per second", first.line, first.text+" a second"))
		}
	}
	for _, line := range block {
		if !strings.ContainsAny(line.text, "/.§0") {
			continue // a match has one of these
		}
		if match := elsewhere.FindString(line.text); match != "" {
			wrong = append(wrong, fmt.Sprintf("%d: %q is not in this repository: state the rule, or link a page of docs", line.number, match))
		}
	}
	return wrong
}

func isNumber(word string) bool { return strings.Trim(word, "0123456789") == "" }

// checkComment checks a comment of the code.
func checkComment(block []proseLine) []string {
	wrong := checkProse(block)
	whole := make([]string, 0, len(block))
	for _, line := range block {
		whole = append(whole, line.text)
	}
	if match := trailer.FindString(strings.TrimSpace(strings.Join(whole, " "))); match != "" {
		last := block[len(block)-1]
		wrong = append(wrong, fmt.Sprintf("%d: %q: docs/dev/names.md maps the original names, comments do not", last.number, match))
	}
	return wrong
}

// goComments returns the comments of a Go file. Adjacent lines are one block.
func goComments(text []byte) [][]proseLine {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(text))
	var scan scanner.Scanner
	scan.Init(file, text, nil, scanner.ScanComments)
	var blocks [][]proseLine
	code, end := 0, -1 // the line of the last code, and of the last comment's end
	for {
		pos, tok, lit := scan.Scan()
		if tok == token.EOF {
			return blocks
		}
		line := file.Line(pos)
		if tok != token.COMMENT {
			if tok != token.SEMICOLON || lit != "\n" {
				code = line
			}
			continue
		}
		if isDirective(lit) {
			continue
		}
		var block []proseLine
		lit = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(lit, "//"), "/*"), "*/")
		for i, part := range strings.Split(lit, "\n") {
			block = append(block, proseLine{line + i, part})
		}
		if end == line-1 && code != line && code != end {
			blocks[len(blocks)-1] = append(blocks[len(blocks)-1], block...)
		} else {
			blocks = append(blocks, block)
		}
		end = line + len(block) - 1
	}
}

// isDirective reports whether a comment is for a tool, as //go:embed is.
func isDirective(comment string) bool {
	rest, ok := strings.CutPrefix(comment, "//")
	if !ok || rest == "" || unicode.IsSpace(rune(rest[0])) {
		return false
	}
	word, _, ok := strings.Cut(rest, ":")
	return ok && !strings.ContainsAny(word, " \t")
}

// capital matches a capital letter that begins a word of an identifier.
var capital = regexp.MustCompile(`[A-Z]+`)

// identifiers returns the words of the identifiers of a Go file, a block for each different one.
func identifiers(text []byte) [][]proseLine {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(text))
	var scan scanner.Scanner
	scan.Init(file, text, nil, 0)
	var blocks [][]proseLine
	seen := make(map[string]bool)
	for {
		pos, tok, lit := scan.Scan()
		if tok == token.EOF {
			return blocks
		}
		if tok == token.IDENT && !seen[lit] {
			seen[lit] = true
			blocks = append(blocks, []proseLine{{file.Line(pos), apart(lit)}})
		}
	}
}

// apart puts spaces between the words of identifiers.
func apart(text string) string {
	return capital.ReplaceAllString(strings.ReplaceAll(promised.ReplaceAllString(text, ""), "_", " "), " $0")
}

// allLines returns the lines of a file that is written for the browser or the shell, the
// words of its identifiers apart. Its texts, comments and identifiers are all prose.
func allLines(text []byte) [][]proseLine {
	var blocks [][]proseLine
	for i, line := range strings.Split(string(text), "\n") {
		blocks = append(blocks, []proseLine{{i + 1, apart(line)}})
	}
	return blocks
}

// dashComments returns the comments of a Lua or SQL file.
func dashComments(text []byte) [][]proseLine {
	var blocks [][]proseLine
	end := -1
	for i, line := range strings.Split(string(text), "\n") {
		before, comment, ok := strings.Cut(line, "--")
		if !ok {
			continue
		}
		part := proseLine{i + 1, strings.TrimLeft(comment, "-[")}
		if end == i && strings.TrimSpace(before) == "" {
			blocks[len(blocks)-1] = append(blocks[len(blocks)-1], part)
		} else {
			blocks = append(blocks, []proseLine{part})
		}
		end = i + 1
	}
	return blocks
}

var (
	codeSpan   = regexp.MustCompile("`[^`]*`")
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
)

// paragraphs returns the prose of a Markdown page, without its code.
func paragraphs(text []byte) [][]proseLine {
	var blocks [][]proseLine
	var block []proseLine
	end := func() {
		if len(block) > 0 {
			blocks, block = append(blocks, block), nil
		}
	}
	fenced := false
	for i, line := range strings.Split(string(text), "\n") {
		trimmed := strings.TrimSpace(line)
		fence := strings.HasPrefix(trimmed, "```")
		if fence {
			fenced = !fenced
		}
		if fence || fenced || trimmed == "" {
			end()
			continue
		}
		if strings.HasPrefix(trimmed, "|") || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "- ") {
			end()
		}
		line = codeSpan.ReplaceAllString(line, "|")
		block = append(block, proseLine{i + 1, linkTarget.ReplaceAllString(line, "]")})
	}
	end()
	return blocks
}

// proseFiles calls check with every file of the repository that has prose.
func proseFiles(t *testing.T, check func(path string, text []byte)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" || name == "bin" || name == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".lua", ".sql", ".md", ".svelte", ".ts", ".js", ".mjs", ".sh", ".py":
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			check(filepath.ToSlash(path), text)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("reading the prose of the repository: %v", err)
	}
}

// proseOf returns the blocks of prose in a file and the check for them.
func proseOf(path string, text []byte) (blocks [][]proseLine, check func([]proseLine) []string) {
	switch filepath.Ext(path) {
	case ".go":
		return append(goComments(text), identifiers(text)...), checkComment
	case ".md":
		return paragraphs(text), checkProse
	case ".lua", ".sql":
		return dashComments(text), checkComment
	}
	return allLines(text), checkProse
}

// The checker is checked, so that a slip in it does not let every line pass.
func TestProseChecker(t *testing.T) {
	t.Parallel()
	for text, complaints := range map[string]int{
		"a.go: package a\n\n// The row is gone for\n// good.\n":                                                    1,
		"b.go: package a\n\nvar x = 1 // Whoever comes first\n":                                                    1,
		"c.go: package a\n\n// Config has every setting. [RedisStreamConfig]\n":                                    1,
		"d.go: package a\n\n// At most 500 a second.\n":                                                            1,
		"e.go: package a\n\n/* it lets\ngo of the lock */\n":                                                       1,
		"f.lua: local x = 1 -- what is in hand\n":                                                                  1,
		"g.sql: -- Largesse looks twice a second.\n":                                                               1,
		"h.md: The pages in seeds/ say so.\n":                                                                      1,
		"i.go: package a\n\n// The list is [a, b].\nvar key, text = \"his lever\", 1 // See [Run] for the rest.\n": 0,
		"j.sql: -- No foreign key: foreign keys are slow.\nselect 'whom';\n":                                       0,
		"k.md: What is `in hand` is pending for, good or bad, a second.\n\n```\nhe mends his seam\n```\n":          0,
		"l.md: - goes\n- on\n": 0,
		"n.go: package a\n\nfunc wantHandovers(lapsedHolds, codeHoldLapsed int) { mendTheSeam() }\n":            3,
		"o.svelte: <script>\n// Says what became of it.\nconst askerName = 1</script>\n<p>For whoever asks</p>": 3,
		"m.go: package a\n\n//go:embed foreign.txt\nvar e string\n":                                             0,
	} {
		path, text, _ := strings.Cut(text, ": ")
		wrong := 0
		blocks, check := proseOf(path, []byte(text))
		for _, block := range blocks {
			wrong += len(check(block))
		}
		if wrong != complaints {
			t.Errorf("%s: %q: %d complaints, want %d", path, text, wrong, complaints)
		}
	}
}

// TestProse checks the words of comments, identifiers, pages and the console.
func TestProse(t *testing.T) {
	t.Parallel()
	files := 0
	proseFiles(t, func(path string, text []byte) {
		files++
		blocks, check := proseOf(path, text)
		for _, block := range blocks {
			for _, wrong := range check(block) {
				t.Errorf("%s:%s", path, wrong)
			}
		}
	})
	if files < 100 {
		t.Errorf("only %d files were read", files)
	}
}
