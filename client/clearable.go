package client

import "encoding/json"

// Clearable is a field of a change that either sets or clears a value.
type Clearable[T any] struct{ value *T }

// Set returns a Clearable that sets a value.
func Set[T any](value T) *Clearable[T] { return &Clearable[T]{&value} }

// Clear returns a Clearable that removes the value.
func Clear[T any]() *Clearable[T] { return &Clearable[T]{} }

// MarshalJSON returns the value, or null if it is cleared.
func (c *Clearable[T]) MarshalJSON() ([]byte, error) { return json.Marshal(c.value) }
