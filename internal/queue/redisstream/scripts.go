package redisstream

import (
	"context"
	"embed"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/queue"
)

//go:embed *.lua
var files embed.FS

// script is a Lua script. Its header lists its KEYS, its ARGV and its result. A
// script uses one stream, and keys that share its slot; it checks first and writes
// last.
type script struct {
	name, text string
	regroups   bool // its second key is regroupedKey
	lua        *rueidis.Lua
}

func load(name string, regroups bool, before ...string) script {
	var text string
	for _, file := range append(before, name) {
		body, err := files.ReadFile(file + ".lua")
		if err != nil {
			panic(err)
		}
		text += string(body)
	}
	return script{name: name, text: text, regroups: regroups, lua: rueidis.NewLuaScript(text)}
}

var (
	addEntries     = load("add_entries", false, "last_delivered")
	readEntries    = load("read_entries", true)
	claimEntries   = load("claim_entries", false)
	adoptEntries   = load("adopt_entries", false, "last_delivered")
	extendEntries  = load("extend_entries", false)
	makeGroup      = load("make_group", true)
	removeConsumer = load("remove_consumer", false)
	streamInfo     = load("stream_info", false)
	destroyStream  = load("destroy_stream", true)
)

// run runs a script on a stream, and decodes its reply.
func run[T any](ctx context.Context, q *Queue, sc script, s queue.Stream, args []string, decode func(rueidis.RedisResult) (T, error)) (T, error) {
	keys := []string{StreamKey(q.prefix, s)}
	if sc.regroups {
		keys = append(keys, regroupedKey(q.prefix, s))
	}
	out, err := decode(sc.lua.Exec(ctx, q.client, keys, args))
	if err != nil {
		err = fmt.Errorf("redisstream: %s %s: %w", sc.name, keys[0], err)
	}
	return out, err
}

// elements returns the n elements of a reply.
func elements(reply rueidis.RedisResult, n int) ([]rueidis.RedisMessage, error) {
	found, err := reply.ToArray()
	if err == nil && len(found) != n {
		err = fmt.Errorf("the reply has %d elements", len(found))
	}
	return found, err
}

// decoder decodes elements of a reply, and keeps the first error.
type decoder struct{ err error }

func (d *decoder) note(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) text(m rueidis.RedisMessage) string {
	text, err := m.ToString()
	d.note(err)
	return text
}

func (d *decoder) number(m rueidis.RedisMessage) int64 {
	n, err := m.AsInt64()
	d.note(err)
	return n
}

func (d *decoder) list(m rueidis.RedisMessage) []rueidis.RedisMessage {
	found, err := m.ToArray()
	d.note(err)
	return found
}

// id returns an entry ID, which is zero for an empty text.
func (d *decoder) id(text string) (id entryID) {
	if text != "" {
		var err error
		id, err = parseEntryID(text)
		d.note(err)
	}
	return id
}

// entry decodes [id, [name, value, …]], and returns the server run that stored the entry.
func (d *decoder) entry(row rueidis.RedisMessage) (e queue.Entry, run string) {
	parts := d.list(row)
	if len(parts) != 2 {
		d.note(fmt.Errorf("an entry has %d elements", len(parts)))
		return e, ""
	}
	fields, err := parts[1].AsStrSlice()
	d.note(err)
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == fieldRun {
			run = fields[i+1]
		}
	}
	return queue.DecodeFields(d.text(parts[0]), fields), run
}

// entries decodes entries that a consumer got, but not for the first time.
func (d *decoder) entries(rows []rueidis.RedisMessage, consumer string) []queue.Entry {
	out := make([]queue.Entry, len(rows))
	for i, row := range rows {
		out[i], _ = d.entry(row)
		out[i].Consumer = consumer
	}
	return out
}
