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

// at returns the entry of a ticket, or nil if it is acknowledged or never existed.
func (b *backlog) at(ticket int64) *backlogEntry {
	i := b.after(ticket - 1)
	if i == len(b.entries) || b.entries[i].Ticket != ticket || b.entries[i].gone {
		return nil
	}
	return &b.entries[i]
}

// list returns at most count requests from one index to another, which is excluded, and
// the index after them.
func (b *backlog) list(from, to, count int) (out []Request, next int) {
	for next = from; next < to && len(out) < count; next++ {
		if e := &b.entries[next]; !e.gone {
			out = append(out, e.Request)
		}
	}
	return out, next
}

// read delivers requests for the first time.
func (b *backlog) read(count int) (out []Request) {
	out, b.unread = b.list(b.unread, len(b.entries), count)
	return out
}

// pending returns the delivered and unacknowledged requests above a ticket.
func (b *backlog) pending(after int64, count int) []Request {
	out, _ := b.list(b.after(after), b.unread, count)
	return out
}

// between returns requests with tickets above after up to upTo.
func (b *backlog) between(after, upTo int64, count int) []Request {
	out, _ := b.list(b.after(after), b.after(upTo), count)
	return out
}

// ack deletes requests of a generation by ticket and returns how many there were.
func (b *backlog) ack(generation int64, tickets []int64) int {
	acked := 0
	for _, t := range tickets {
		if e := b.at(t); e != nil && e.Generation == generation {
			e.gone, e.UserID = true, ""
			acked++
		}
	}
	b.length -= acked
	b.compact()
	return acked
}

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
