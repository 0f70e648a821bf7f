package store

import (
	"context"
	"time"
)

// APIKeys stores the API keys of callers. It never stores a secret: a key is
// found by the SHA-256 of its text.
type APIKeys interface {
	// APIKeyCreate inserts a key. A known ID or Hash is CodeExists. An ID below 1, a
	// Hash of the wrong length and a text that the database cannot store are
	// CodeInvalid. LastUsedAt, RevokedAt and RevokedBy are ignored.
	APIKeyCreate(ctx context.Context, k APIKey) error
	// APIKeyByHash returns the key with a hash, even if it is revoked or expired,
	// or CodeAPIKeyNotFound.
	APIKeyByHash(ctx context.Context, hash []byte) (APIKey, error)
	// APIKeyList returns at most limit keys by descending ID. Only IDs below before
	// count; 0 starts at the newest.
	APIKeyList(ctx context.Context, before int64, limit int) ([]APIKey, error)
	// APIKeyRevoke revokes a key permanently and returns it. A repeat changes
	// nothing. A missing key is CodeAPIKeyNotFound. A by that the database cannot
	// store is CodeInvalid.
	APIKeyRevoke(ctx context.Context, id int64, by string, now time.Time) (APIKey, error)
	// APIKeyMakers returns who made each key, including revoked ones, ordered by ID.
	APIKeyMakers(ctx context.Context) ([]APIKeyMaker, error)
	// APIKeyUsed records when keys were last used, by ID, for at most BatchMax keys.
	// A time before the recorded one changes nothing, and neither does an unknown
	// ID.
	APIKeyUsed(ctx context.Context, used map[int64]time.Time) error
}

// APIKey identifies a caller and grants a role.
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

// Audits stores who changed what, and when. A line is added before the change
// and ended after it. A line without an end means that the change may have
// happened.
type Audits interface {
	// AuditBegin adds a line. It ignores EndedAt, Status and Code. A known ID is
	// CodeExists. An ID below 1 and a text that the database cannot store are
	// CodeInvalid.
	AuditBegin(ctx context.Context, l AuditLine) error
	// AuditEnd ends a line. An unknown or ended line stays as it is. If status says that
	// the change was refused, only AuditRefusedMax characters of Detail are kept.
	AuditEnd(ctx context.Context, id int64, status int, code string, now time.Time) error
	// AuditDrop deletes a line that has no end, of a change that was refused and is counted
	// elsewhere.
	AuditDrop(ctx context.Context, id int64) error
	// AuditList returns a page of lines by descending ID. A text that no line can
	// have is CodeInvalid.
	AuditList(ctx context.Context, p AuditListParams) ([]AuditLine, error)
}

// AuditLine is one change that a caller requested.
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

// Idempotencies stores the responses to requests by idempotency key.
//
// A caller owns a key from IdempotencyBegin until it finishes, drops or releases
// the key, or until Lease has passed. A key expires once it was first begun more
// than Kept ago and no caller owns it. An expired key counts as unknown.
type Idempotencies interface {
	// IdempotencyBegin claims a key for the caller. If many callers try at once,
	// one of them succeeds. The claim succeeds in two cases:
	//
	//   - The key is unknown or expired.
	//   - The key has the same fingerprint and no answer, and its last owner
	//     released it or let its Lease pass. Again is then set, and ID is the one
	//     that was reserved first.
	//
	// Otherwise nothing changes, Claimed is false, and the record is returned as it
	// is: finished, owned by another caller, or with another fingerprint.
	//
	// Each call also removes some expired keys, at most IdempotencyForgets.
	IdempotencyBegin(ctx context.Context, p IdempotencyBeginParams) (IdempotencyRecord, error)
	// IdempotencyFinish stores the answer and reports whether it did. It expects
	// that the caller still owns the key, which it began at begunAt. It changes
	// nothing if the key has another answer; a repeat with the same one succeeds.
	IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error)
	// IdempotencyDrop removes a key whose request had no effect. It changes nothing
	// if the key has an answer, or if the caller no longer owns it.
	IdempotencyDrop(ctx context.Context, key []byte, begunAt time.Time) error
	// IdempotencyRelease ends the ownership of a key whose request has an unknown
	// result. The next caller with the same fingerprint claims it at once, with
	// Again set. It changes nothing where IdempotencyDrop changes nothing.
	IdempotencyRelease(ctx context.Context, key []byte, begunAt time.Time) error
}

// IdempotencyBeginParams asks for a key.
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
