package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/largesse/largesse/client"
)

func (c *cli) printStream(s client.PromotionStream) error {
	d := details{out: c.stdout}
	fmt.Fprintln(c.stdout)
	if !s.Exists {
		d.add("stream", "none: nothing is dispatched")
		return d.flush()
	}
	d.add("stream", cmp.Or(s.Key, "in the process of the server"))
	d.add("group", s.Group)
	d.add("entries", number(s.Length))
	d.add("  not read", number(s.Lag))
	d.add("  pending", number(s.Pending))
	d.add("oldest entry", moment(s.OldestAt))
	d.add("oldest pending", moment(s.OldestPendingAt))
	if err := d.flush(); err != nil {
		return err
	}
	if len(s.Consumers) == 0 {
		_, err := fmt.Fprintln(c.stdout, "\nthe stream has no consumers")
		return err
	}
	fmt.Fprintln(c.stdout)
	return printList(c, each(s.Consumers, nil), listing[client.StreamConsumer]{
		header: []string{"CONSUMER", "INSTANCE", "ALIVE", "PENDING", "IDLE"},
		row: func(one client.StreamConsumer) []string {
			idle := time.Duration(one.IdleMillis) * time.Millisecond
			return []string{one.Name, one.Instance, yesNo(one.Alive), number(one.Pending), idle.String()}
		},
	})
}
