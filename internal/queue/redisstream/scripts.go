package redisstream

import (
	_ "embed"

	"github.com/redis/rueidis"
)

// The header of each script lists its KEYS, its ARGV and its result. A script
// uses one stream, and keys that share its slot; it checks first and writes
// last.
var (
	//go:embed last_delivered.lua
	lastDeliveredText string
	//go:embed add_entries.lua
	addEntriesBody string
	//go:embed read_entries.lua
	readEntriesText string
	//go:embed claim_entries.lua
	claimEntriesText string
	//go:embed adopt_entries.lua
	adoptEntriesBody string
	//go:embed extend_entries.lua
	extendEntriesText string
	//go:embed make_group.lua
	makeGroupText string
	//go:embed remove_consumer.lua
	removeConsumerText string
	//go:embed stream_info.lua
	streamInfoText string
	//go:embed destroy_stream.lua
	destroyStreamText string

	addEntriesText   = lastDeliveredText + addEntriesBody
	adoptEntriesText = lastDeliveredText + adoptEntriesBody

	addEntries     = rueidis.NewLuaScript(addEntriesText)
	readEntries    = rueidis.NewLuaScript(readEntriesText)
	claimEntries   = rueidis.NewLuaScript(claimEntriesText)
	adoptEntries   = rueidis.NewLuaScript(adoptEntriesText)
	extendEntries  = rueidis.NewLuaScript(extendEntriesText)
	makeGroup      = rueidis.NewLuaScript(makeGroupText)
	removeConsumer = rueidis.NewLuaScript(removeConsumerText)
	streamInfo     = rueidis.NewLuaScript(streamInfoText)
	destroyStream  = rueidis.NewLuaScript(destroyStreamText)
)
