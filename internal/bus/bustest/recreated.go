package bustest

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// testRecreated deletes topics and creates them again, as after a loss of the brokers'
// data. Publishers, listeners and broadcasts that run use the new ones.
func testRecreated(t *testing.T, b *bench) {
	const early, late = 100, 50
	seen, heard := newLog(), newLog()
	l := b.listen(t, b.open(t), seen.handle, nil, 0)
	c := b.broadcast(t, b.open(t), heard.handle)
	b.publish(t, 0, early)
	b.publishStarted(t, "early")
	seen.wait(t, early)
	heard.wait(t, 1)
	b.waitNoLag(t)

	admin, names := b.admin(t), []string{b.prefix + topic, b.prefix + bus.TopicStarted}
	fixture.Must(admin.DeleteTopics(t.Context(), names...))(t)
	fixture.Until(t, "the topics are gone", func() bool {
		details := fixture.Must(admin.ListTopics(t.Context(), names...))(t)
		for _, name := range names {
			if d, listed := details[name]; listed && !errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
				return false
			}
		}
		return true
	})
	fixture.OK(t, b.open(t).EnsureTopics(t.Context()))
	publish := func(topic, value string) {
		t.Helper()
		record := bus.Record{Topic: topic, Key: []byte(value), Value: []byte(value)}
		fixture.Until(t, value+" is published", func() bool { return b.client.Publish(t.Context(), []bus.Record{record}) == nil })
	}
	publish(topic, "first")
	publish(bus.TopicStarted, "late")
	b.publish(t, early, late)
	seen.wait(t, early+late+1)
	heard.wait(t, 2)
	b.waitNoLag(t)
	b.wantStops(t, l.Stop)
	b.wantStops(t, c.Stop)
}
