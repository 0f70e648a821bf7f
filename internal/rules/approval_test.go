package rules

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

func TestWhoMayApprove(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		persons, authors []string
		want             string // of the error; empty: they may
	}{
		"nobody wrote it":            {[]string{"ann"}, nil, ""},
		"somebody else wrote it":     {[]string{"ann"}, []string{"bob", "eve"}, ""},
		"she wrote it":               {[]string{"ann"}, []string{"bob", "ann"}, `"ann" wrote it: ask another person`},
		"she wrote it, in capitals":  {[]string{"ANN"}, []string{"ann"}, `"ann" wrote it`},
		"her key, made by an author": {[]string{"key", "bob"}, []string{"bob"}, `the API key of "key" was made by "bob", and "bob" wrote it`},
		"her key, made by herself":   {[]string{"key", "ann"}, []string{"bob"}, ""},
	} {
		err := CheckApprover(test.persons, test.authors, "wrote it")
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want != "" && (!reward.HasCode(err, reward.CodeSamePerson) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v; %q was wanted", name, err, test.want)
		}
	}
}
