// Package coupon models the protocol that keeps every promise of a coupon: the gate in
// Redis, the rows in the database, and what happens between them while instances crash
// and Redis loses data. It contains only tests: they try every order of steps in small
// systems.
//
// Three models share the rules of options_test.go:
//
//   - stream_*_test.go is STREAM mode. Two instances issue, load the gate and sweep
//     expired holds; up to three users request, wait and leave; operators cancel, confirm
//     and change the quantity. Requests may go through the rows while some instances
//     still reach the gate.
//   - kafka_*_test.go is KAFKA mode: the gate's outbox, the log, consumers that read in
//     any order, and loads with the floor that voids older records.
//   - lock_test.go is the lock of SYNC mode, with a clock that steps back.
//
// One step is one script, one transaction or one event. A script of a load touches one
// request of the line; the product's touch more, but never all. Applies are messages
// that come late, repeated, in any order or never.
//
// In every state the invariants must hold: nobody gets more than their limit or than
// they asked for, live coupons and promised places never exceed the quantity, and
// a user with a 202 that Redis has not lost is in the line, in their order, until they
// are served. The places that are free are never counted: the gate derives them from the
// quantity, the live coupons and the line. From every state the steps without faults
// must lead to rest, although every apply was lost: nobody waits, and the gate shows
// what the rows say.
//
// docs/dev/models.md says what is not modeled, how to run it and what it found.
package coupon
