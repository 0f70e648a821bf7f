// Package api compares a running instance with its OpenAPI description: by schemathesis,
// and by clients that generators made of it.
package api
