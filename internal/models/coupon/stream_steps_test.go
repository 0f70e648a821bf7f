package coupon

import (
	"fmt"
	"strings"

	"github.com/largesse/largesse/internal/models/explore"
)

// step is a kind of step of the STREAM model.
type step uint8

// The first steps continue what an instance has begun: without faults they come first,
// then loads and sweeps begin, then the others.
const (
	settles step = iota
	settlesNothing
	acknowledges
	raises
	closes
	loadEnds
	readsRows
	trims
	putsBack
	copies
	swaps
	covers
	sweeps
	marks // the first that begins something
	sweepReads
	takesLease // the first of the others
	claims
	reads
	coverReads

	asks
	asksRows
	applies
	flushes
	writesSnapshot
	restarts
	removes
	crashes
	losesReply
	cancels
	bypasses
	grants
	shrinks
	takesBack
	lowers
	lowersNothing
	raisesQuantity
	leaves
	leavesRow
	leavesTooLate
	confirms
	expires
	closesTemplate
	reopens
	seesOver
	archives
	archivesNothing
	removesRow
	releases
	stepCount
)

// steps says for each step what happens, and which functions, methods and scripts of the
// module take it. %s is an instance or a user, %d a number.
var steps = [stepCount]struct{ text, code string }{
	settles:         {"%s settles its batch", "coupon.Issuer.settle store/rows.Tables.CouponSettle rules.Refuse rules.Issue"},
	settlesNothing:  {"%s has its batch refused", "coupon.Issuer.settle store/rows.Tables.CouponSettle rules.Refuse"},
	acknowledges:    {"%s acknowledges its batch", "coupon.Issuer.acknowledge gate.Gate.Ack gate/redisgate/ack.lua"},
	raises:          {"%s raises the generation to %d", "gatekeeper.loadTry.run gatekeeper.loadKind store/rows.Tables.TemplateNewGeneration"},
	closes:          {"%s closes the gate", "gate.Gate.LoadClose gate/redisgate/load_close.lua"},
	loadEnds:        {"%s ends its load: refused", ""},
	readsRows:       {"%s reads the rows for its load", "gatekeeper.loadTry.readRows store/rows.Tables.CouponSnapshot"},
	putsBack:        {"%s puts one user back in line", "gatekeeper.loadTry.putBack gatekeeper.loadTry.waiting gate.Gate.LoadMissing gate/redisgate/load_missing.lua gate.Gate.LoadBack gate/redisgate/load_back.lua"},
	trims:           {"%s takes one request out of the line", "gatekeeper.loadTry.prepareLine gate.Gate.LoadTrim gate/redisgate/load_trim.lua gatekeeper.loadTry.removeLeft gate.Gate.LoadLeft gate/redisgate/load_left.lua"},
	copies:          {"%s copies one request", "gatekeeper.loadTry.prepareLine gatekeeper.loadTry.waiting gate.Gate.LoadCopy gate/redisgate/load_copy.lua"},
	swaps:           {"%s swaps: the gate is loaded", "gate.Gate.LoadSwap gate/redisgate/load_swap.lua"},
	covers:          {"a covering apply arrives", "gatekeeper.Applier.CatchUp gate.Gate.Apply gate/redisgate/apply.lua"},
	sweeps:          {"%s sweeps the expired hold of ticket %d", "coupon.Catalog.endHolds store/rows.Tables.CouponEndHolds"},
	marks:           {"%s sets the load marker", "gate.Gate.LoadBegin gate/redisgate/load_begin.lua"},
	sweepReads:      {"%s reads the expired hold of ticket %d", "coupon.Catalog.endHolds store/rows.Tables.HoldsEnded"},
	takesLease:      {"%s takes the issuer's lease", "coupon.IssuerManager.round store/rows.Tables.TemplateAssign"},
	claims:          {"%s claims everything pending", "gate.Gate.Claim gate/redisgate/claim.lua"},
	reads:           {"%s reads %d new", "gate.Gate.Read gate/redisgate/read.lua"},
	coverReads:      {"the rows are read for a covering apply", "gatekeeper.Maintainer.catchUp gatekeeper.Applier.CatchUp"},
	asks:            {"%s requests: 202, ticket %d", "gate.Gate.Admit gate/redisgate/admit.lua"},
	asksRows:        {"%s requests through the rows: coupon", "coupon.Intake.issueBatch"},
	applies:         {"an apply arrives", "gatekeeper.Applier.Apply gate.Gate.Apply gate/redisgate/apply.lua"},
	flushes:         {"REDIS LOSES ALL", ""},
	writesSnapshot:  {"Redis writes a snapshot", ""},
	restarts:        {"REDIS RESTARTS FROM THE SNAPSHOT", ""},
	removes:         {"SOMEBODY TAKES %s OUT OF THE LINE", ""},
	crashes:         {"%s CRASHES, and starts again", ""},
	losesReply:      {"%s reads %d new, and THE REPLY IS LOST", ""},
	cancels:         {"the coupon of ticket %d is cancelled", "coupon.Catalog.Cancel store/rows.Tables.CouponCancel"},
	bypasses:        {"PATH DATABASE", "gatekeeper.Maintainer.fallBack gatekeeper.Maintainer.standIn gatekeeper.loadTry.leaveGate"},
	grants:          {"%d places are set aside", "gatekeeper.Granter.grant store/rows.Tables.TemplateGrant rules.Grant"},
	shrinks:         {"the gate gives up the places that it has not given", "gatekeeper.Granter.gateShrink gate.Gate.Shrink gate/redisgate/shrink.lua"},
	takesBack:       {"the row takes back places of the gate", "gatekeeper.Granter.shrink store/rows.Tables.TemplateShrink rules.Shrink"},
	lowers:          {"the quantity is lowered to %d", "gatekeeper.Granter.Change store/rows.Tables.TemplateChange rules.Shrunk.takeBack"},
	lowersNothing:   {"lowering the quantity is refused", "gatekeeper.Granter.Change rules.CheckChange"},
	raisesQuantity:  {"the quantity is raised to %d", "coupon.Catalog.Change"},
	leaves:          {"%s reads ticket %d to leave the line", "coupon.Intake.leaveLine gate.Gate.Place gate/redisgate/place.lua"},
	leavesRow:       {"%s leaves the line: row LEFT", "coupon.Intake.leaveLine store/rows.Tables.CouponLeave rules.Leave.Apply"},
	leavesTooLate:   {"%s is too late to leave, or refused", "coupon.Intake.leaveLine coupon.Intake.ended"},
	confirms:        {"the coupon of ticket %d is confirmed", "coupon.Catalog.Confirm store/rows.Tables.CouponConfirm"},
	expires:         {"the hold of ticket %d expires", ""},
	closesTemplate:  {"the template closes", "coupon.Catalog.Close"},
	reopens:         {"the template opens again", "coupon.Catalog.Change store/rows.Tables.TemplateChange"},
	seesOver:        {"the template is seen to be over", "engine.retention.archive store/rows.Tables.TemplateArchive"},
	archives:        {"the template is archived", "engine.retention.archive store/rows.Tables.TemplateArchive"},
	archivesNothing: {"the template has changed, and is not archived", "store/rows.Tables.TemplateArchive"},
	removesRow:      {"the row of ticket %d is removed", "engine.retention.couponsOf store/rows.Tables.TemplateForget"},
	releases:        {"the row takes back the places of a closed template without a gate", "gatekeeper.Maintainer.maintain store/rows.Tables.TemplateShrink rules.Shrink"},
}

// label says which step was taken: by which instance, or of which user, and a number.
type label struct {
	step    step
	who     uint8
	number  uint8
	swapped bool // the instances changed places; see model.canonical
}

// none stands for no instance and no user.
const none = 0xff

func (l label) String() string {
	text := steps[l.step].text
	var words []any
	switch {
	case l.ofInstance():
		words = append(words, fmt.Sprintf("instance %d", l.who+1))
	case l.who != none:
		words = append(words, letter(l.who))
	}
	if strings.Contains(text, "%d") {
		words = append(words, l.number)
	}
	return fmt.Sprintf(text, words...)
}

// ofInstance reports whether a label names an instance.
func (l label) ofInstance() bool {
	return l.who != none && (l.step < asks || l.step == crashes || l.step == losesReply)
}

// transition is a possible step and the state after it.
type transition = explore.Step[state, label]

// model computes the steps that are possible in a state of the STREAM model.
type model struct {
	options
	// calm leaves out faults and users, and allows as many loads as needed.
	calm bool
	out  []transition
}

// First returns the state in which a run begins: an empty gate, unless the run begins
// without one.
func (m *model) First() state {
	s := state{generation: 1, loads: 1, may: m.events}
	if s.may[eventGrant] == 0 {
		s.may[eventGrant] = 2
	}
	s.figures.total = m.total
	if !m.without[placesAreSetAside] {
		s.figures.granted, s.figures.grant = m.granted, 1
	}
	if m.codes {
		s.pool = 1<<(m.total+m.events[eventCancel]) - 1
	}
	s.record()
	s.gate = gate{
		exists: true, thisRun: true, generation: 1, total: s.figures.total, granted: s.figures.granted, grant: s.figures.grant,
	}
	if m.empty {
		s.gate, s.loads = gate{}, 0
	}
	m.canonical(&s)
	return s
}

// emit adds a step, with the invariant that it breaks, or "".
func (m *model) emit(was *state, next state, st step, who, number uint8, breach string) {
	if changed := m.observe(was, &next); breach == "" {
		breach = changed
	}
	swapped := m.canonical(&next)
	m.out = append(m.out, transition{Label: label{st, who, number, swapped}, Breach: breach, Next: next})
}

// Next returns all steps that are possible in a state.
func (m *model) Next(s *state) (steps []transition, breach string) {
	m.out = m.out[:0]
	m.calm = false
	m.requests(s)
	m.redis(s)
	m.coupons(s)
	m.pastTheGate(s)
	m.quantity(s)
	m.leave(s)
	m.archive(s)
	for version := uint8(1); version <= s.version && !s.archived; version++ {
		t := *s
		m.apply(&t, version, false)
		if t.gate != s.gate {
			m.emit(s, t, applies, none, 0, "")
		}
	}
	m.cover(s)
	for i := range uint8(instances) {
		if s.may[eventCrash] > 0 {
			t := *s
			t.may[eventCrash]--
			t.all[i] = instance{}
			m.emit(s, t, crashes, i, 0, "")
		}
		m.instance(s, i)
	}
	return m.out, ""
}

// Calm returns the step that comes next when nothing fails, nobody requests anything
// and every apply was lost.
func (m *model) Calm(s *state) (transition, bool) {
	m.out, m.calm = m.out[:0], true
	if s.archived {
		m.removeRow(s) // no instance maintains its gate
	} else {
		for i := range uint8(instances) {
			m.instance(s, i)
		}
		m.cover(s)
	}
	best := -1
	for k := range m.out {
		if m.out[k].Next != *s && (best < 0 || urgency(m.out[k].Label.step) < urgency(m.out[best].Label.step)) {
			best = k
		}
	}
	if best < 0 {
		return transition{}, false
	}
	return m.out[best], true
}

// urgency orders steps: what has begun ends before anything else begins.
func urgency(st step) int {
	switch {
	case st < marks:
		return 0
	case st < takesLease:
		return 1
	default:
		return 2
	}
}

// instance adds what an instance does.
func (m *model) instance(s *state, i uint8) {
	m.issue(s, i)
	m.load(s, i)
	m.sweepHolds(s, i)
}

// Trace returns the lines of a trace. Instances keep their numbers, although states
// swap the instances.
func (m *model) Trace(found explore.Result[state, label]) (lines []string) {
	swapped := false
	write := func(path []label, prefix string) {
		for _, l := range path {
			if swapped && l.ofInstance() {
				l.who ^= 1
			}
			lines = append(lines, prefix+l.String())
			swapped = swapped != l.swapped
		}
	}
	write(found.Path, "")
	write(found.Calm, "then: ")
	return append(lines, found.Last.String())
}
