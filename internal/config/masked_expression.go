package config

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/parser/lexer"
)

var (
	// secretName finds the names that secrets have.
	secretName = regexp.MustCompile(`(?i)pass|pwd|secret|token|key|auth`)
	// secretText finds such a name with a value in a text.
	secretText = regexp.MustCompile(`(?is)(?:pass|pwd|secret|token|key|auth)[^:=]*[:=]\s*\S`)
)

// maskExpression masks the constants that an expression has under the name of a secret:
// in the value of a field or variable, in pairs, and in texts and comments that have such
// a name themselves. It masks all of a text that is no expression.
func maskExpression(text string) string {
	if strings.TrimSpace(text) == "" {
		return text
	}
	tree, err := parser.Parse(text)
	tokens, lexed := lexer.Lex(file.NewSource(text))
	if err != nil || lexed != nil {
		return mask
	}
	found := &secrets{variables: map[string]bool{}}
	for known := -1; known < len(found.variables); { // a secret value may name variables
		known = len(found.variables)
		ast.Walk(&tree.Node, found)
	}
	runes := []rune(text)
	end := 0
	for _, token := range tokens {
		start := min(token.From, len(runes))
		if start > end && strings.Contains(string(runes[end:start]), "/") && secretName.MatchString(string(runes[end:start])) {
			found.comments = append(found.comments, file.Location{From: end, To: start})
		}
		end = max(end, token.To)
	}
	var b strings.Builder
	end = 0
	hidden := append(found.literals, found.comments...)
	slices.SortFunc(hidden, func(a, b file.Location) int { return cmp.Compare(a.From, b.From) })
	for _, h := range slices.Compact(hidden) {
		b.WriteString(string(runes[end:h.From]))
		end = h.To
		if slices.Contains(found.comments, h) {
			b.WriteString(" /* " + mask + " */\n")
			continue
		}
		b.WriteString(`"` + mask + `"`)
	}
	return b.String() + string(runes[end:])
}

// secrets collects where an expression has secrets.
type secrets struct {
	variables          map[string]bool // whose values are parts of secrets
	literals, comments []file.Location
}

// Visit implements ast.Visitor.
func (s *secrets) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.PairNode:
		if secretName.MatchString(constant(n.Key)) {
			s.hide(n.Value)
		}
	case *ast.ArrayNode:
		if len(n.Nodes) != 2 {
			return
		}
		if name, ok := n.Nodes[0].(*ast.StringNode); ok && secretName.MatchString(name.Value) {
			s.hide(n.Nodes[1])
		}
	case *ast.VariableDeclaratorNode:
		if s.variables[n.Name] || secretName.MatchString(n.Name) {
			s.hide(n.Value)
		}
	case *ast.StringNode:
		if secretText.MatchString(n.Value) {
			s.literals = append(s.literals, n.Location())
		}
	}
}

// hide masks the constants of a value, but not the names of its fields.
func (s *secrets) hide(value ast.Node) {
	names := map[ast.Node]bool{}
	visit(value, func(node ast.Node) {
		switch n := node.(type) {
		case *ast.PairNode:
			names[n.Key] = true
		case *ast.MemberNode:
			names[n.Property] = true
		}
	})
	visit(value, func(node ast.Node) {
		switch n := node.(type) {
		case *ast.StringNode, *ast.BytesNode, *ast.IntegerNode, *ast.FloatNode:
			if !names[node] {
				s.literals = append(s.literals, node.Location())
			}
		case *ast.IdentifierNode:
			s.variables[n.Value] = true
		}
	})
}

// constant returns the texts of an expression, one after the other.
func constant(node ast.Node) string {
	text := ""
	visit(node, func(node ast.Node) {
		if n, ok := node.(*ast.StringNode); ok {
			text += n.Value
		}
	})
	return text
}

type visitor func(ast.Node)

// Visit implements ast.Visitor.
func (v visitor) Visit(node *ast.Node) { v(*node) }

func visit(node ast.Node, v visitor) { ast.Walk(&node, v) }
