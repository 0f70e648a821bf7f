package auth

import (
	"strings"

	"github.com/largesse/largesse/internal/store"
)

// Persons returns the names that a principal can act under, its own first. The people
// who made a key, or a key under such a name, can use it. keys are all that ever
// existed.
func Persons(p Principal, keys []store.APIKeyMaker) []string {
	persons := []string{p.Name}
	if p.KeyID == 0 {
		return persons
	}
	add := func(name string) {
		for _, known := range persons {
			if strings.EqualFold(known, name) {
				return
			}
		}
		if name != "" {
			persons = append(persons, name)
		}
	}
	for _, k := range keys {
		if k.ID == p.KeyID {
			add(k.CreatedBy)
		}
	}
	for i := 1; i < len(persons); i++ {
		for _, k := range keys {
			if strings.EqualFold(k.Name, persons[i]) {
				add(k.CreatedBy)
			}
		}
	}
	return persons
}
