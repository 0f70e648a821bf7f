package client

import "encoding/json"

// Clearable is a value to set, or nothing in its place.
type Clearable[T any] struct{ value *T }

// Set sets a value.
func Set[T any](value T) *Clearable[T] { return &Clearable[T]{&value} }

// Clear takes the value away.
func Clear[T any]() *Clearable[T] { return &Clearable[T]{} }

// MarshalJSON writes the value, or null.
func (c *Clearable[T]) MarshalJSON() ([]byte, error) { return json.Marshal(c.value) }
