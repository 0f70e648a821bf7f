package rules

import "time"

// ChangeRefusal decides what happens to the intervals in which a template refuses every
// request, when it does so for reason from at on. An empty reason means that it does not.
// lasts is the reason of the interval that has not ended; empty means none. latest is the
// latest time of an interval: a change before it counts as of then. At since, the interval
// that lasts ends, another one begins, or both.
func ChangeRefusal(lasts string, latest time.Time, reason string, at time.Time) (since time.Time, ends, begins bool) {
	if lasts == reason {
		return time.Time{}, false, false
	}
	if since = at; since.Before(latest) {
		since = latest
	}
	return since, lasts != "", reason != ""
}
