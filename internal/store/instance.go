package store

import (
	"encoding/json"
	"fmt"
)

// EncodedInstance is the JSON that drivers store of an instance.
type EncodedInstance struct{ Roles, Pools, Troubles, Governor string }

// Encode returns the lists and the governor of an instance as JSON. A text that a database cannot store
// is CodeInvalid.
func (i *Instance) Encode() (e EncodedInstance, err error) {
	texts := []namedText{{"instance name", i.Name}, {"version", i.Version}}
	for _, r := range i.Roles {
		texts = append(texts, namedText{"role", r})
	}
	for _, p := range i.Pools {
		texts = append(texts, namedText{"promotion type", string(p.Type)})
	}
	for _, t := range i.Troubles {
		texts = append(texts, namedText{"part", t.Part}, namedText{"reason", t.Reason})
	}
	if err := checkTexts(texts); err != nil {
		return EncodedInstance{}, err
	}
	for _, f := range []struct {
		what  string
		value any
		to    *string
	}{{"roles", i.Roles, &e.Roles}, {"pools", i.Pools, &e.Pools}, {"troubles", i.Troubles, &e.Troubles}, {"governor", i.Governor, &e.Governor}} {
		text, err := json.Marshal(f.value)
		if err != nil {
			return EncodedInstance{}, fmt.Errorf("encode the %s of instance %q: %w", f.what, i.Name, err)
		}
		*f.to = string(text)
	}
	return e, nil
}

// Decode sets them from what Encode returned.
func (i *Instance) Decode(e EncodedInstance) error {
	for _, f := range []struct {
		what, text string
		to         any
	}{{"roles", e.Roles, &i.Roles}, {"pools", e.Pools, &i.Pools}, {"troubles", e.Troubles, &i.Troubles}, {"governor", e.Governor, &i.Governor}} {
		if err := json.Unmarshal([]byte(f.text), f.to); err != nil {
			return fmt.Errorf("decode the %s of instance %q: %w", f.what, i.Name, err)
		}
	}
	for n := range i.Pools {
		i.Pools[n].StartedAt = i.Pools[n].StartedAt.UTC()
	}
	return nil
}
