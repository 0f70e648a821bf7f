package web

import "sync"

// drain records whether this instance drains, and ends responses that wait for
// something and would delay a stop. It is safe for concurrent use.
type drain struct {
	mu    sync.Mutex    // protects what follows
	begun chan struct{} // closed while draining; nil until begins is called
	on    bool
}

func (d *drain) set(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.on == on {
		return
	}
	d.on = on
	switch {
	case !on:
		d.begun = nil
	case d.begun != nil:
		close(d.begun)
	}
}

func (d *drain) active() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.on
}

// begins returns a channel that is closed once draining begins, or has begun.
func (d *drain) begins() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun == nil {
		d.begun = make(chan struct{})
		if d.on {
			close(d.begun)
		}
	}
	return d.begun
}
