package coupon

import (
	"fmt"

	"github.com/largesse/largesse/internal/models/explore"
)

const (
	lockClients = 3
	// clockTokens is the token that the clock gives per tick, more than locks can add.
	clockTokens = 100
	// firstTick is the time at which a run begins.
	firstTick = 2
)

// clientPhase is how far a client of the lock is.
type clientPhase uint8

const (
	clientStarts clientPhase = iota
	clientLocks              // has read the fence of the row
	clientWrites             // has the lock
	clientDone
)

// client is a request that needs the lock of a template.
type client struct {
	phase        clientPhase
	fence, token uint8
}

// lockState is the lock in Redis, its clock, and the fence in the row.
type lockState struct {
	latest uint8 // token of the latest lock
	holder uint8 // client plus 1 that Redis knows as the holder
	tick   uint8
	fence  uint8 // token of the last write
	older  bool  // a write with an older token followed a newer one
	all    [lockClients]client
	may    events
}

// lockLabel says which step was taken.
type lockLabel string

type lockTransition = explore.Step[lockState, lockLabel]

// lockModel computes the steps that are possible in a state of the lock of SYNC mode.
type lockModel struct {
	options
	out []lockTransition
}

// First returns the state in which a run begins.
func (m *lockModel) First() lockState { return lockState{tick: firstTick, may: m.events} }

func (m *lockModel) emit(next lockState, fault bool, format string, args ...any) {
	m.out = append(m.out, lockTransition{Label: lockLabel(fmt.Sprintf(format, args...)), Fault: fault, Next: next})
}

// Next returns all steps that are possible in a state.
func (m *lockModel) Next(s *lockState) (steps []lockTransition, breach string) {
	m.out = m.out[:0]
	for i := range uint8(lockClients) {
		m.client(s, i)
	}
	fault := func(e event, possible bool, t lockState, text string) {
		if possible && s.may[e] > 0 {
			t.may[e]--
			m.emit(t, true, "%s", text)
		}
	}
	t := *s
	t.latest, t.holder = 0, 0
	fault(eventFlush, true, t, "REDIS LOSES ALL")
	t = *s
	t.tick--
	fault(eventClock, s.tick > 0, t, "THE CLOCK STEPS BACK")
	t = *s
	t.holder = 0
	fault(eventLeaseExpiry, s.holder != 0, t, "THE LOCK EXPIRES")
	return m.out, ""
}

// client lets a client read the row, lock, and write.
func (m *lockModel) client(s *lockState, i uint8) {
	t := *s
	me := &t.all[i]
	switch me.phase {
	case clientStarts:
		me.phase, me.fence = clientLocks, s.fence
		m.emit(t, false, "client %d reads the row: fence %d", i+1, s.fence)
	case clientLocks:
		token := s.latest
		switch {
		case s.holder == i+1 && !m.without[lockIsRepeatable]:
		case s.holder != 0:
			return
		default:
			token = max(s.latest+1, s.tick*clockTokens)
			if !m.without[lockHasFloor] {
				token = max(token, me.fence+1)
			}
		}
		t.latest, t.holder = token, i+1
		if lost := t; s.may[eventLostReply] > 0 {
			lost.may[eventLostReply]--
			m.emit(lost, true, "client %d locks with token %d, and THE REPLY IS LOST", i+1, token)
		}
		me.phase, me.token = clientWrites, token
		m.emit(t, false, "client %d locks with token %d", i+1, token)
	case clientWrites:
		if s.holder == i+1 && s.latest == me.token {
			t.holder = 0 // the unlock names the token
		}
		token := me.token
		if token <= s.fence {
			*me = client{}
			m.emit(t, false, "client %d is refused: %d is not above fence %d", i+1, token, s.fence)
			return
		}
		t.older = token <= s.fence
		t.fence = token
		*me = client{phase: clientDone}
		m.emit(t, false, "client %d writes with token %d", i+1, token)
	}
}

// Check returns the invariant that a state breaks, or "".
func (m *lockModel) Check(s *lockState) string {
	if s.older {
		return "an older token writes after a newer one"
	}
	return ""
}

// Calm returns the step that comes next when nothing fails, the clock makes no progress
// and no lock expires.
func (m *lockModel) Calm(s *lockState) (lockTransition, bool) {
	steps, _ := m.Next(s)
	for _, t := range steps {
		if t.Fault {
			continue
		}
		for _, c := range s.all {
			if c.phase == clientWrites && c.fence == s.fence && c.token <= s.fence {
				t.Breach = "a client has to wait until the clock has caught up"
			}
		}
		return t, true
	}
	return lockTransition{}, false
}

// Rest returns what is wrong with a state in which nothing happens any more, or "".
func (m *lockModel) Rest(s *lockState) string {
	for _, c := range s.all {
		if c.phase != clientDone {
			return "a client waits until a lease expires"
		}
	}
	return ""
}
