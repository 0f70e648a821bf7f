package reward

import (
	"encoding/json"
	"slices"
)

// Authors are the names of those who made or changed something: a JSON array. It is
// empty if there are none.
type Authors string

// authorsMax is the length in bytes above which Authors take no more names. Somebody who
// can choose a name per call cannot make a row grow for ever.
const authorsMax = 16 << 10

// Names returns the names, in the order in which they were added.
func (a Authors) Names() []string {
	var names []string
	if a != "" {
		// Only Add makes Authors, so it is JSON.
		_ = json.Unmarshal([]byte(a), &names)
	}
	return names
}

// Add returns a with a name. A name that is empty or known changes nothing, nor does any
// name if a is full.
func (a Authors) Add(name string) Authors {
	names := a.Names()
	if name == "" || a.Full() || slices.Contains(names, name) {
		return a
	}
	text, _ := json.Marshal(append(names, name)) // strings always have a JSON form
	return Authors(text)
}

// Full reports whether names may be missing, because there were too many.
func (a Authors) Full() bool { return len(a) > authorsMax }
