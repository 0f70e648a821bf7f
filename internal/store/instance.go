package store

import (
	"encoding/json"
	"fmt"
)

// Encode returns the roles and pools of an instance as the JSON that drivers
// store. A text that a database cannot store is CodeInvalid.
func (i *Instance) Encode() (roles, pools string, err error) {
	if err := CheckText("instance name", i.Name); err != nil {
		return "", "", err
	}
	if err := CheckText("version", i.Version); err != nil {
		return "", "", err
	}
	for _, r := range i.Roles {
		if err := CheckText("role", r); err != nil {
			return "", "", err
		}
	}
	for _, p := range i.Pools {
		if err := CheckText("promotion type", string(p.Type)); err != nil {
			return "", "", err
		}
	}
	r, err := json.Marshal(i.Roles)
	if err != nil {
		return "", "", fmt.Errorf("encode the roles of instance %q: %w", i.Name, err)
	}
	p, err := json.Marshal(i.Pools)
	if err != nil {
		return "", "", fmt.Errorf("encode the pools of instance %q: %w", i.Name, err)
	}
	return string(r), string(p), nil
}

// Decode sets the roles and pools from what Encode returned.
func (i *Instance) Decode(roles, pools string) error {
	if err := json.Unmarshal([]byte(roles), &i.Roles); err != nil {
		return fmt.Errorf("decode the roles of instance %q: %w", i.Name, err)
	}
	if err := json.Unmarshal([]byte(pools), &i.Pools); err != nil {
		return fmt.Errorf("decode the pools of instance %q: %w", i.Name, err)
	}
	for n := range i.Pools {
		i.Pools[n].StartedAt = i.Pools[n].StartedAt.UTC()
	}
	return nil
}
