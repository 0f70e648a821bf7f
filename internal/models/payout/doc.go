// Package payout models the protocol that pays each payout once although instances
// crash, Redis loses data and the provider does not answer. It contains only tests:
// they try every order of steps in small systems, and random orders in larger ones.
//
// A state has one or two rows, one stream, two instances and a provider. An instance
// has at most one entry and one job (an add, a sweep, a lookup, a destroy) at a time.
// Each statement, each script and each request that the provider receives is one step.
// steps_test.go says for each kind of step which code takes it. Time is a step too:
// a lease expires, a dispatch horizon passes. Faults are steps that a run allows a
// number of times.
//
// In every state the invariants must hold: no payout is paid twice, none is FAILED or
// CANCELLED although it was paid, the counts agree with the rows, no entry leaves the
// stream while its row is QUEUED under its dispatch. From every state, steps that are
// no faults must lead to the end: rows and promotion are final, the stream is gone.
//
// Some steps of the model stand for several ways in the code:
//
//   - An outcome is one step. PostgreSQL writes a batch with an UPDATE that names QUEUED
//     and the dispatch, and the remaining rows in a second transaction with a statement
//     that locks them first. Each row is changed by one of the two: a row that is not
//     QUEUED under a dispatch never is again, so the second one changes a row only if it
//     was paid. A crash in between is a crash before that row's outcome, because entries
//     are acknowledged after both.
//   - PostgreSQL reads the status of the promotion without a lock. So the model also
//     lets a row become READY or RETRYING after a cancel, which then takes it.
//   - A sweep is two steps of any instance at any time: it reads the stream, then it
//     writes. One sweeper that owns a part of the promotions does less than that.
//   - A retry that is due, from the retry topic or from the rows, is a dispatch.
//   - A destroy is confirmed when Redis can no longer forget what it did before the
//     first destroy. The model needs no clock for that.
//
// docs/dev/models.md says what is not modelled, how to run it and what it found.
package payout
