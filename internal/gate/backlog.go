package gate

import "sort"

// backlog is the request stream with its group, in the order of tickets. What
// is acknowledged leaves a gap until gaps are more than half.
type backlog struct {
	entries []backlogEntry
	unread  int // place of the first that was not read
	length  int
}

type backlogEntry struct {
	user   string
	ticket int64
	gone   bool
}

// add appends a request; its ticket is above all others.
func (b *backlog) add(user string, ticket int64) {
	b.entries = append(b.entries, backlogEntry{user: user, ticket: ticket})
	b.length++
}

// after is the place of the first ticket above that.
func (b *backlog) after(ticket int64) int {
	return sort.Search(len(b.entries), func(i int) bool { return b.entries[i].ticket > ticket })
}

// find returns the entry of a ticket; nil = it is acknowledged, or never was.
func (b *backlog) find(ticket int64) *backlogEntry {
	i := b.after(ticket - 1)
	if i == len(b.entries) || b.entries[i].ticket != ticket || b.entries[i].gone {
		return nil
	}
	return &b.entries[i]
}

// read takes what nobody has read.
func (b *backlog) read(generation int64, count int) []Request {
	var out []Request
	for ; b.unread < len(b.entries) && len(out) < count; b.unread++ {
		if e := &b.entries[b.unread]; !e.gone {
			out = append(out, Request{UserID: e.user, Ticket: e.ticket, Generation: generation})
		}
	}
	return out
}

// pending returns what was read and not acknowledged, above a ticket.
func (b *backlog) pending(generation, after int64, count int) []Request {
	var out []Request
	for i := b.after(after); i < b.unread && len(out) < count; i++ {
		if e := &b.entries[i]; !e.gone {
			out = append(out, Request{UserID: e.user, Ticket: e.ticket, Generation: generation})
		}
	}
	return out
}

// ack deletes tickets and returns how many were there.
func (b *backlog) ack(tickets []int64) int {
	acked := 0
	for _, t := range tickets {
		if e := b.find(t); e != nil {
			e.gone, e.user = true, ""
			acked++
		}
	}
	b.length -= acked
	b.compact()
	return acked
}

// tidy drops the gaps once they are more than what is left.
func (b *backlog) compact() {
	if gaps := len(b.entries) - b.length; gaps < compactGapsMin || gaps < b.length {
		return
	}
	kept, unread := make([]backlogEntry, 0, b.length+compactGapsMin), 0
	for i, e := range b.entries {
		if i == b.unread {
			unread = len(kept)
		}
		if !e.gone {
			kept = append(kept, e)
		}
	}
	if b.unread == len(b.entries) {
		unread = len(kept)
	}
	b.entries, b.unread = kept, unread
}
