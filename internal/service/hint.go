package service

// Hint is a signal that may be lost without harm: a mailbox that holds at most
// one. A receiver reads from the channel; hints given before it does count as
// one. All methods are safe for concurrent use. The zero Hint is not usable.
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
