package gate

import "sort"

// backlog is the request stream and its group, in ticket order. An acknowledged
// request leaves a gap until the gaps are at least half of the entries.
type backlog struct {
	entries []backlogEntry
	unread  int // index of the first entry not delivered
	length  int // entries without gaps
}

type backlogEntry struct {
	Request
	gone bool // acknowledged
}

// add appends a request. Its ticket must be above all others.
func (b *backlog) add(r Request) {
	b.entries = append(b.entries, backlogEntry{Request: r})
	b.length++
}

// after returns the index of the first entry above a ticket.
func (b *backlog) after(ticket int64) int {
	return sort.Search(len(b.entries), func(i int) bool { return b.entries[i].Ticket > ticket })
}

// find returns the entry of a ticket of a generation, or nil if it is acknowledged or
// never existed.
func (b *backlog) find(ticket, generation int64) *backlogEntry {
	i := b.after(ticket - 1)
	if i == len(b.entries) || b.entries[i].Ticket != ticket || b.entries[i].Generation != generation || b.entries[i].gone {
		return nil
	}
	return &b.entries[i]
}

// generation returns the generation of the request with a ticket, or 0 if it is
// acknowledged or never existed.
func (b *backlog) generation(ticket int64) int64 {
	i := b.after(ticket - 1)
	if i == len(b.entries) || b.entries[i].Ticket != ticket || b.entries[i].gone {
		return 0
	}
	return b.entries[i].Generation
}

// read delivers requests for the first time.
func (b *backlog) read(count int) []Request {
	var out []Request
	for ; b.unread < len(b.entries) && len(out) < count; b.unread++ {
		if e := &b.entries[b.unread]; !e.gone {
			out = append(out, e.Request)
		}
	}
	return out
}

// pending returns the delivered and unacknowledged requests above a ticket.
func (b *backlog) pending(after int64, count int) []Request {
	var out []Request
	for i := b.after(after); i < b.unread && len(out) < count; i++ {
		if e := &b.entries[i]; !e.gone {
			out = append(out, e.Request)
		}
	}
	return out
}

// between returns requests with tickets above after up to upTo.
func (b *backlog) between(after, upTo int64, count int) []Request {
	var out []Request
	for i := b.after(after); i < len(b.entries) && b.entries[i].Ticket <= upTo && len(out) < count; i++ {
		if e := &b.entries[i]; !e.gone {
			out = append(out, e.Request)
		}
	}
	return out
}

// ack deletes requests of a generation by ticket and returns how many there were.
func (b *backlog) ack(generation int64, tickets []int64) int {
	acked := 0
	for _, t := range tickets {
		if e := b.find(t, generation); e != nil {
			e.gone, e.UserID = true, ""
			acked++
		}
	}
	b.length -= acked
	b.compact()
	return acked
}

// compact removes the gaps once they are at least half of the entries.
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
