package redisgate

import (
	"strconv"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// longLine describes a gate that is loaded, and what watches the steps of its loads.
type longLine struct {
	*rig
	inLine, holders int
	step            func(name string, call func() error)
	loaded          func(kind gate.LoadKind)
}

func (l *longLine) loadInSteps(s gate.State) {
	l.Helper()
	p := l.begin("loader", s)
	if !l.inSteps(p, l.holders, l.step).Done {
		l.Fatal("the swap was refused")
	}
	l.loaded(p.Kind)
}

// exercise loads a gate with a long line and many holders: first a load that keeps the
// line, then one that writes it again.
func (l *longLine) exercise() {
	l.Helper()
	settled := int64(l.inLine / 10 * 3)
	s := l.state(1)
	s.Total = int64(l.inLine + l.holders)
	l.loadInSteps(s)
	for first := 0; first < l.inLine; first += gate.AdmitMax {
		users := make([]string, min(gate.AdmitMax, l.inLine-first))
		for i := range users {
			users[i] = "user-" + strconv.Itoa(first+i)
		}
		l.admit(users...)
	}
	for range l.inLine / 2 / gate.ReadMax { // half of them are pending at a consumer
		fixture.Must(l.g.Read(l.Context(), l.id, "issuer", gate.ReadMax))(l)
	}
	s.Generation, s.Version, s.Settled = 2, 2, settled
	l.loadInSteps(s)
	if h := l.header(); h.Waiting != int64(l.inLine)-settled || h.LastTicket != int64(l.inLine) {
		l.Fatalf("header %+v", h)
	}
	s.Generation, s.Version, s.Base = 4, 3, 3
	l.loadInSteps(s)
	if h := l.header(); h.Waiting != int64(l.inLine)-settled || h.Backlog != h.Waiting || h.LastTicket != int64(l.inLine) {
		l.Fatalf("header %+v", h)
	}
}

// counted precedes a script that counts what its commands touch: the arguments, the
// elements of a reply, and those that a command says it has removed.
const counted = `
local function counted(...)
  local name, reply = (...), redis.call(...)
  local touched = select('#', ...)
  if type(reply) == 'table' then
    touched = touched + #reply
  elseif type(reply) == 'number' and (name:find('^ZREM') or name == 'XDEL' or name == 'XTRIM' or name == 'XACK') then
    touched = touched + reply
  end
  redis.call('INCRBY', 'touched', touched)
  return reply
end
`

// TestALongLineIsLoadedInShortSteps checks that a step of a load touches no more for a line
// of 20,000 users than its own limit demands. The nightly tier measures the time.
func TestALongLineIsLoadedInShortSteps(t *testing.T) { //nolint:paralleltest // it changes the scripts
	for _, s := range []*script{loadClose, loadHoldings, loadTrim, loadPage, loadCopy, loadSwap} {
		was := *s
		t.Cleanup(func() { *s = was })
		*s = *newScript(s.name, counted+strings.ReplaceAll(s.text, "redis.call(", "counted("), s.keys)
	}
	const most = 5 * gate.LoadMax // a user has a place in line and a request of several fields
	r := newRig(t, fixture.Own(t, fleet.NewRedis).Address())
	touched := map[string]int{}
	l := &longLine{rig: r, inLine: 20_000, holders: 10_000, step: func(name string, call func() error) {
		r.do("SET", "touched", "0")
		fixture.OK(r, call())
		touched[name] = max(touched[name], fixture.Must(strconv.Atoi(r.do("GET", "touched").(string)))(r))
	}, loaded: func(gate.LoadKind) {}}
	l.exercise()
	t.Log(touched)
	for name, n := range touched {
		if n > most || n == 0 {
			t.Errorf("a call of %s touches %d", name, n)
		}
	}
}
