package auth

import (
	"slices"
	"testing"

	"github.com/largesse/largesse/internal/store"
)

func TestPersons(t *testing.T) {
	t.Parallel()
	keys := []store.APIKeyMaker{
		{ID: 1, Name: "root", CreatedBy: "os"},
		{ID: 2, Name: "kim", CreatedBy: "root"},
		{ID: 3, Name: "throwaway", CreatedBy: "Kim"}, // made by kim
		{ID: 4, Name: "second", CreatedBy: "throwaway"},
		{ID: 5, Name: "lee", CreatedBy: "root"},
		{ID: 6, Name: "lee", CreatedBy: "kim"}, // in the name of somebody else
		{ID: 7, Name: "neo", CreatedBy: "lee"},
		{ID: 8, Name: "loop", CreatedBy: "loop"},
	}
	for _, tt := range []struct {
		name string
		p    Principal
		want []string
	}{
		{"a token", Principal{Name: "kim"}, []string{"kim"}},
		{"a key", Principal{Name: "lee", KeyID: 5}, []string{"lee", "root", "os"}},
		{"a key that an author made", Principal{Name: "throwaway", KeyID: 3}, []string{"throwaway", "Kim", "root", "os"}},
		{"indirectly", Principal{Name: "second", KeyID: 4}, []string{"second", "throwaway", "Kim", "root", "os"}},
		{"in another name", Principal{Name: "lee", KeyID: 6}, []string{"lee", "kim", "root", "os"}},
		{"by a name that two keys have", Principal{Name: "neo", KeyID: 7}, []string{"neo", "lee", "root", "kim", "os"}},
		{"by itself", Principal{Name: "loop", KeyID: 8}, []string{"loop"}},
		{"unknown", Principal{Name: "x", KeyID: 9}, []string{"x"}},
	} {
		if got := Persons(tt.p, keys); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
