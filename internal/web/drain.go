package web

import "sync"

// drain says whether no more work should be sent to this instance, and ends
// what would otherwise hold a stop up: answers that wait for something.
type drain struct {
	mu    sync.Mutex    // protects what follows
	begun chan struct{} // closed while draining; nil before the first look
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

// begins is closed once draining begins, or has begun.
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
