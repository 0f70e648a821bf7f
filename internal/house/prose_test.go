package house

import (
	"errors"
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// unread lists the folders and files whose prose the check does not read yet.
var unread = []string{}

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
			if path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".lua", ".sql", ".md":
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
		return goComments(text), checkComment
	case ".md":
		return paragraphs(text), checkProse
	}
	return dashComments(text), checkComment
}

// isUnread reports whether a file is on the list of those not read yet.
func isUnread(path string) bool {
	for _, part := range unread {
		if path == part || strings.HasPrefix(path, part+"/") || (part == "." && !strings.Contains(path, "/") && strings.HasSuffix(path, ".go")) {
			return true
		}
	}
	return false
}

// The checker is checked, so that a slip in it does not let every line pass.
func TestProseChecker(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"a.go": "package a\n\n// Sweep returns rows. The bank says they may; a second call is refused.\n" +
			"var he, seam = \"his lever\", 1 // See [Run] for the rest.\n\n//nolint:foo // no reason\nfunc f() {}\n",
		"b.lua": "local he = 1 - 2 -- the heir keeps its entries\n",
		"c.sql": "-- No foreign key: a foreign-key check would lock the row, and foreign keys are slow.\nselect handovers;\n",
		"d.md":  "# Leases\n\nWhat is `in hand` is pending. It can wait for, good or bad, a second.\n\n```\nhe mends his seam\n```\n[x](../seeds/x.md)\n",
		"e.go":  "package a\n\n// Approved by a second person within 2 seconds. It expires [Registry.Stop] first.\nvar x = `// he`\n",
		"f.go":  "package a\n\n// Run ends when\n// [Stop] is called.\n",
		"g.md":  "| a pool | goes |\n| on | and on |\n",
		"i.go":  "package a\n\nvar a = 1 // ends for\nvar b = 1 // good\n",
		"j.md":  "What it gives\n\nback is nothing.\n",
		"k.go":  "package a\n\n// The list is [a, b].\n",
		"l.md":  "Shared or not, design choices follow the contract.\n",
		"m.sql": "select 'whom';\n",
		"o.md":  "- goes\n- on\n",
		"p.go":  "package a\n\n/* Block comments\ncount too. */\nvar c int\n",
		"q.go":  "package a\n\n// It sends 5 calls per second, once per second.\n",
		"r.md":  "He-Ne lasers are no people.\n",
		"u.go":  "package a\n\n//go:embed foreign.txt\nvar e string\n",
		"v.go":  "package a\n\n// Parts of a foreign\n// key.\n",
		"w.md":  "See [the payouts](promotions.md) and [Redis].\n",
		"y.go":  "package a\n\n// Rank 0: a second goes by.\n",
	}
	for path, text := range good {
		if wrong := allWrong(path, text); len(wrong) > 0 {
			t.Errorf("%s: %q: complaints %v", path, text, wrong)
		}
	}
	bad := map[string]string{
		"a.go":  "package a\n\n// The user knows what he has.\n",
		"b.go":  "package a\n\nvar x = 1 // Whoever comes first\n",
		"c.go":  "package a\n\n// The row is gone for\n// good.\n",
		"d.go":  "package a\n\n/* it lets\ngo of the lock */\n",
		"e.go":  "package a\n\n// A foreign client.\n",
		"f.go":  "package a\n\n// Config has every setting. [RedisStreamConfig]\n",
		"g.go":  "package a\n\n// Request admits a user.\n// [CouponIssueFacade.requestIssue]\n",
		"h.go":  "package a\n\n// See design.md for why.\n",
		"i.go":  "package a\n\n// The horizon is X of design §2.\n",
		"j.go":  "package a\n\n// At most 500 a second.\n",
		"k.lua": "local x = 1 -- what is in hand\n",
		"l.sql": "-- Largesse looks twice a second.\n",
		"m.md":  "A *look-up* asks.\n",
		"n.md":  "| `a` | the far side pays |\n",
		"o.md":  "The pool stands\nstill.\n",
		"p.md":  "The pages in seeds/ say so.\n",
		"q.md":  "The user and his place.\n",
		"s.go":  "package a\n\n// TestIdle is 7.2: a stop.\n",
		"r.go":  "package a\n\nfunc f() {\n\tg() // Handovers: none\n}\n",
	}
	for path, text := range bad {
		if wrong := allWrong(path, text); len(wrong) != 1 {
			t.Errorf("%s: %q: complaints %v, want one", path, text, wrong)
		}
	}
}

// describes matches the first words of a comment that describes a name.
var describes = regexp.MustCompile(`^([A-Z][A-Za-z]*) (?:reports|limits|is|are|says|returns|counts|means|names|holds|has) `)

// wrongSubject returns the subject of a comment that describes another name
// than the ones it precedes, as a comment does after a rename; or "".
func wrongSubject(comment string, names []*ast.Ident) string {
	match := describes.FindStringSubmatch(comment)
	if match == nil || len(names) == 0 || slices.Contains(commonSubjects, match[1]) {
		return ""
	}
	for _, name := range names {
		if name.Name == match[1] || !name.IsExported() {
			return ""
		}
	}
	return match[1]
}

// commonSubjects begin sentences about any name.
var commonSubjects = []string{"It", "This", "That", "There", "They", "The", "What", "Which", "Who", "Each", "These", "Those"}

// TestSubjects checks that the comment of an exported field, type or constant
// begins with its own name, not with the name it had before.
func TestSubjects(t *testing.T) {
	t.Parallel()
	for _, file := range tree(t) {
		if file.test() || isUnread(file.path) {
			continue
		}
		check := func(doc *ast.CommentGroup, names ...*ast.Ident) {
			if subject := wrongSubject(doc.Text(), names); subject != "" {
				t.Errorf("%s: the comment of %s describes %s", file.path, names[0].Name, subject)
			}
		}
		ast.Inspect(file.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				check(n.Doc, n.Names...)
			case *ast.FuncDecl:
				check(n.Doc, n.Name)
			case *ast.GenDecl:
				if len(n.Specs) != 1 || n.Lparen.IsValid() {
					return true
				}
				switch spec := n.Specs[0].(type) {
				case *ast.TypeSpec:
					check(n.Doc, spec.Name)
				case *ast.ValueSpec:
					check(n.Doc, spec.Names...)
				}
			case *ast.ValueSpec:
				check(n.Doc, n.Names...)
			}
			return true
		})
	}
}

// The checker of subjects is checked, too.
func TestSubjectChecker(t *testing.T) {
	t.Parallel()
	field := []*ast.Ident{ast.NewIdent("PendingMax")}
	for comment, want := range map[string]string{
		"PendingMax limits the pending entries.": "", "HandMost limits the pending entries.": "HandMost", "Zero means no limit.": "Zero",
		"It limits the pending entries.": "", "Limits of all pools.": "", "": "",
	} {
		if got := wrongSubject(comment, field); got != want {
			t.Errorf("%q: subject %q, want %q", comment, got, want)
		}
	}
	if got := wrongSubject("Keys are unique.", []*ast.Ident{ast.NewIdent("keys")}); got != "" {
		t.Errorf("the comment of an unexported name is not checked, but has the subject %q", got)
	}
}

// allWrong returns the complaints about a file.
func allWrong(path, text string) []string {
	var all []string
	blocks, check := proseOf(path, []byte(text))
	for _, block := range blocks {
		all = append(all, check(block)...)
	}
	return all
}

// TestProse checks the words of comments and pages.
func TestProse(t *testing.T) {
	t.Parallel()
	files := 0
	proseFiles(t, func(path string, text []byte) {
		files++
		if isUnread(path) {
			return
		}
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
	for _, part := range unread {
		if _, err := os.Stat(part); errors.Is(err, fs.ErrNotExist) {
			t.Errorf("unread names %s, which does not exist", part)
		}
	}
}
