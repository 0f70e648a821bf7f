package store

import (
	"time"
)

// APIKey identifies a caller and grants a role. Its secret is not stored: it is found by
// the SHA-256 of its text.
type APIKey struct {
	ID   int64
	Name string // the owner or purpose, for operators
	// Prefix is the beginning of the key's text. It lets operators distinguish
	// keys.
	Prefix     string
	Hash       []byte // SHA-256 of the key's text
	Role       string
	CreatedAt  time.Time
	CreatedBy  string
	ExpiresAt  time.Time // zero means never
	LastUsedAt time.Time // to the minute; zero means never
	RevokedAt  time.Time // zero means not revoked
	RevokedBy  string    // empty unless revoked
}

// APIKeyMaker says who made an API key.
type APIKeyMaker struct {
	ID                   int64
	Name                 string
	CreatedBy            string
	ExpiresAt, RevokedAt time.Time // as in APIKey
}

// AuditRefusedMax is the number of characters of AuditLine.Detail that are kept of a
// change that was refused.
const AuditRefusedMax = 500

// AuditLine is one change that a caller requested. It is added before the change and ended
// after it. Without an end, the change may have happened.
type AuditLine struct {
	ID int64
	At time.Time
	// Actor is the caller and Role their role. If the API accepts callers without
	// authentication, Actor is only the name that they gave.
	Actor, Role string
	// KeyID is the API key of the caller, and TokenSubject the sub of their token: names
	// can be alike. Both are empty for callers with neither, and for lines of earlier
	// versions.
	KeyID        int64
	TokenSubject string
	// Action is the ID of the operation, such as "start-promotion". Subject is the
	// path of what it changes, such as "/v1/promotions/12". Detail is the request
	// body as JSON; empty if there was none.
	Action, Subject, Detail string
	RequestID               string
	// Address is the IP address of the client. It is empty for callers in this process,
	// for commands on the database, and for lines of earlier versions.
	Address string
	EndedAt time.Time // zero means that the result is unknown
	Status  int       // HTTP status of the response; 0 until the end
	Code    string    // error code of the response; empty means none
}

// AuditListParams selects a page of the audit. An empty text means any.
type AuditListParams struct {
	Before int64 // only IDs below; 0 starts at the newest
	Limit  int
	Actor  string
	Action string
	// Subject selects one subject. With a slash at the end it selects all subjects
	// that begin with it.
	Subject string
}

// IdempotencyForgets limits how many expired keys one call of IdempotencyBegin
// removes.
const IdempotencyForgets = 100

// IdempotencyBeginParams asks for a key. A caller owns a key from IdempotencyBegin until it
// finishes, drops or releases the key, or until Lease has passed. A key expires once it was
// first begun more than Kept ago and no caller owns it. An expired key counts as unknown.
type IdempotencyBeginParams struct {
	Key         []byte // 32 bytes, a hash of caller, operation and key
	Fingerprint []byte // 32 bytes, a hash of the request
	// ID is reserved for what the request creates, so that a retry after a crash
	// creates the same.
	ID    int64
	Lease time.Duration // how long the caller owns the key
	Kept  time.Duration // how long answers are retained
	Now   time.Time
}

// IdempotencyRecord is what the database knows about a key.
type IdempotencyRecord struct {
	Claimed bool // the caller owns the key now
	// Again reports that an earlier owner began the same request, and that its
	// progress is unknown. It is set only with Claimed.
	Again       bool
	ID          int64
	Fingerprint []byte
	FirstAt     time.Time // when the key was first begun
	BegunAt     time.Time // when the current owner began it, to the microsecond
	Done        bool      // the key has an answer
	Answer      []byte    // nil unless Done
}
