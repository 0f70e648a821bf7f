package service

// Hint is a signal that may be lost without harm. A receiver reads from the channel;
// hints given before it does count as one. It is safe for concurrent use.
type Hint chan struct{}

// NewHint returns an empty Hint.
func NewHint() Hint { return make(Hint, 1) }

// Give leaves a hint. It never blocks.
func (h Hint) Give() {
	select {
	case h <- struct{}{}:
	default:
	}
}

// Take removes the hint and reports whether there was one. It never blocks.
func (h Hint) Take() bool {
	select {
	case <-h:
		return true
	default:
		return false
	}
}
