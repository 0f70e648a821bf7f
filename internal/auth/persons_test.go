package auth

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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

// TestNobodyApprovesThroughKeysOfTheirOwn makes random keys with random keys, and
// compares who counts as an author with the chains of makers, followed one key at a
// time. A key counts as everybody on its chain. A key that no author has made, directly
// or through other keys, counts as no author.
func TestNobodyApprovesThroughKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		name := func(id int64) string { return fmt.Sprintf("key-%d", id) }
		keys := make([]store.APIKeyMaker, 1+random.IntN(40))
		maker := make(map[string]string)
		for i := range keys {
			keys[i] = store.APIKeyMaker{ID: int64(i + 1), Name: name(int64(i + 1)), CreatedBy: "os"} // the command on the machine
			if i > 0 && random.IntN(4) > 0 {
				keys[i].CreatedBy = keys[random.IntN(i)].Name
			}
			if random.IntN(2) == 0 {
				keys[i].CreatedBy = strings.ToUpper(keys[i].CreatedBy)
			}
			maker[keys[i].Name] = strings.ToLower(keys[i].CreatedBy)
		}
		shuffled := slices.Clone(keys)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		author := name(int64(1 + random.IntN(len(keys))))
		for _, k := range keys {
			descends := false
			for at, ok := k.Name, true; ok && !descends; at, ok = maker[at] {
				descends = at == author
			}
			persons := Persons(Principal{Name: k.Name, KeyID: k.ID}, shuffled)
			if got := slices.ContainsFunc(persons, func(p string) bool { return strings.EqualFold(p, author) }); got != descends {
				t.Fatalf("seed %d: %s is among the persons %v of %s: %v, want %v; keys: %v", seed, author, persons, k.Name, got, descends, keys)
			}
		}
	}
}
