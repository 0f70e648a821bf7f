package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// limitFlag adds --limit, which limits how much of a list is shown.
func (c *cli) limitFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().IntVar(&c.limit, "limit", 50, "maximum number of items to show; 0: all")
	return cmd
}

// yesFlag adds --yes to a command that asks.
func (c *cli) yesFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&c.yes, "yes", false, "no question")
	return cmd
}

// choice is the value of a flag that takes one of some words, in lower or upper case.
type choice struct {
	to    *string // in upper case, as in the API
	words []string
}

func (v *choice) String() string { return *v.to }
func (v *choice) Type() string   { return "string" }

// Set takes a word, or "" for none.
func (v *choice) Set(text string) error {
	if text != "" && !slices.Contains(v.words, strings.ToLower(text)) {
		return wrongUse("must be one of %s", strings.Join(v.words, ", "))
	}
	*v.to = strings.ToUpper(text)
	return nil
}

// choiceFlag adds a flag that takes one of some words, and offers them to the shell.
func choiceFlag(cmd *cobra.Command, to *string, name, usage string, words ...string) {
	cmd.Flags().Var(&choice{to, words}, name, usage)
	complete(cmd, name, words...)
}

// filterFlag is choiceFlag with a usage that ends with the words.
func filterFlag(cmd *cobra.Command, to *string, name, usage string, words ...string) {
	choiceFlag(cmd, to, name, usage+": "+strings.Join(words, ", "), words...)
}

// ifChanged returns the value of a flag, or nil if it was not set.
func ifChanged[T any](changed func(string) bool, flag string, value *T) *T {
	if changed(flag) {
		return value
	}
	return nil
}

// timeForm says what times look like.
const timeForm = "must look like 2026-12-24T18:00:00Z"

// timeValue is the value of a flag that takes a time, or "" for none.
type timeValue time.Time

func (v *timeValue) String() string { return "" } // no time is the default of a flag
func (v *timeValue) Type() string   { return "string" }

// Set takes a time.
func (v *timeValue) Set(text string) error {
	if text == "" {
		*v = timeValue{}
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return wrongUse(timeForm)
	}
	*v = timeValue(at)
	return nil
}

// timeFlag parses the value of a flag that is a time.
func timeFlag(flag, value string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return at, wrongUse("--%s %q "+timeForm, flag, value)
	}
	return at, nil
}

// The values of --amounts.
const (
	minorUnits = "minor"
	majorUnits = "major"
)

// unitsValue is the value of --amounts: whether amounts are in major units.
type unitsValue bool

func (v *unitsValue) String() string {
	if *v {
		return majorUnits
	}
	return minorUnits
}

func (v *unitsValue) Type() string { return "string" }

// Set takes one of the units.
func (v *unitsValue) Set(units string) error {
	if units != minorUnits && units != majorUnits {
		return wrongUse("must be %s or %s", minorUnits, majorUnits)
	}
	*v = units == majorUnits
	return nil
}

func unitsFlag(cmd *cobra.Command, major *bool, what string) {
	cmd.Flags().Var((*unitsValue)(major), "amounts", "units of "+what+": minor (1050 is 10.50 EUR) or major (10.50)")
	complete(cmd, "amounts", minorUnits, majorUnits)
}
