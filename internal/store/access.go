package store

import (
	"context"
	"time"
)

// APIKeys keeps the keys of callers, without the secrets: a key is found by the
// SHA-256 of its text.
type APIKeys interface {
	// APIKeyCreate inserts a key; CodeExists for a known ID or Hash, CodeInvalid
	// for an ID that is not above 0, a Hash that is none, and when a text cannot be
	// stored as it is. LastUsedAt, RevokedAt and RevokedBy are not taken over.
	APIKeyCreate(ctx context.Context, k APIKey) error
	// APIKeyByHash returns the key with that hash, revoked and expired ones too;
	// CodeAPIKeyNotFound.
	APIKeyByHash(ctx context.Context, hash []byte) (APIKey, error)
	// APIKeyList pages by descending id, below before when that is not 0.
	APIKeyList(ctx context.Context, before int64, limit int) ([]APIKey, error)
	// APIKeyRevoke revokes a key for good and returns it; a second time changes
	// nothing. CodeAPIKeyNotFound; CodeInvalid when by cannot be stored as it is.
	APIKeyRevoke(ctx context.Context, id int64, by string, now time.Time) (APIKey, error)
	// APIKeyUsed notes, by id, when keys were last used (at most BatchMax); an
	// earlier time than the one that is noted changes nothing, nor does an unknown
	// id.
	APIKeyUsed(ctx context.Context, used map[int64]time.Time) error
}

// APIKey is what proves who a caller is.
type APIKey struct {
	ID   int64
	Name string // whose it is, or what for
	// Prefix is the beginning of the key's text, for people to tell keys apart.
	Prefix     string
	Hash       []byte // SHA-256 of its text
	Role       string
	CreatedAt  time.Time
	CreatedBy  string
	ExpiresAt  time.Time // zero: never
	LastUsedAt time.Time // to the minute; zero: never
	RevokedAt  time.Time // zero: it is not
	RevokedBy  string
}

// Audits keeps who did what, when. A line is added before the change and ended
// after it, so one without an end tells of a change that may have happened.
type Audits interface {
	// AuditBegin adds a line, in which EndedAt, Status and Code are not taken
	// over; CodeExists for a known ID, CodeInvalid for one that is not above 0 and
	// when a text cannot be stored as it is.
	AuditBegin(ctx context.Context, l AuditLine) error
	// AuditEnd ends a line; an unknown id, or one that has ended, changes nothing.
	AuditEnd(ctx context.Context, id int64, status int, code string, now time.Time) error
	// AuditList pages by descending id; CodeInvalid for a text that no line can
	// have.
	AuditList(ctx context.Context, p AuditListParams) ([]AuditLine, error)
}

// AuditLine is one change that somebody asked for.
type AuditLine struct {
	ID int64
	At time.Time
	// Actor is who asked, Role what he was allowed; Actor is only what was said
	// where nobody has to prove who he is.
	Actor, Role string
	// Action is the operation's id ("start-promotion"), Subject what it was done
	// to as the path says it ("/v1/promotions/12"), Detail the request's body as
	// JSON where there was one; "" otherwise.
	Action, Subject, Detail string
	RequestID               string
	EndedAt                 time.Time // zero: not known how it ended
	Status                  int       // HTTP status it ended with
	Code                    string    // of the problem; "" = none
}

// AuditListParams pages over the audit; "" = any.
type AuditListParams struct {
	Before int64 // 0 = from the newest
	Limit  int
	Actor  string
	Action string
	// Subject is one, or with a slash at its end all that begin with it.
	Subject string
}

// IdempotencyForgets is how many keys a call of IdempotencyBegin forgets at most.
const IdempotencyForgets = 100

// Idempotencies keeps what was answered under which idempotency key.
//
// A key is in somebody's hands from IdempotencyBegin until Lease is over, unless
// he finishes it or lets it go. It is forgotten, which is as if nobody had ever
// asked for it, when it was first begun more than Kept ago and is in nobody's
// hands.
type Idempotencies interface {
	// IdempotencyBegin claims a key. Claimed: nobody had it, or it was forgotten, or
	// who had it for this fingerprint has neither finished it nor let it go within
	// Lease. The record is then the caller's; in the last case Again is set, and ID
	// is the one that was reserved first. Of many who ask at once one gets it.
	// Otherwise nothing changes and the record is as it stands: Done with an
	// answer, in somebody else's hands, or of another fingerprint, in which case it
	// is never claimed. Each call removes some keys that are forgotten (at most
	// IdempotencyForgets).
	IdempotencyBegin(ctx context.Context, p IdempotencyBeginParams) (IdempotencyRecord, error)
	// IdempotencyFinish keeps the answer. It changes nothing, and says so
	// (false), when the key is not the one's any more who began it at begunAt, or he
	// has finished it with another answer.
	IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error)
	// IdempotencyDrop lets a key go, because nothing has come of it. It changes
	// nothing when the key is done, or not the one's any more who began it at
	// begunAt.
	IdempotencyDrop(ctx context.Context, key []byte, begunAt time.Time) error
	// IdempotencyRelease takes a key out of the hands of who began it at begunAt,
	// because he has ended and does not know what has come of it: the next one
	// claims it, Again, before its Lease is over. It changes nothing when
	// IdempotencyDrop would not.
	IdempotencyRelease(ctx context.Context, key []byte, begunAt time.Time) error
}

// IdempotencyBeginParams asks for a key.
type IdempotencyBeginParams struct {
	Key         []byte // 32 bytes that stand for caller, operation and key
	Fingerprint []byte // 32 bytes that stand for the request
	// ID is reserved for what the request makes, so that a second try after a
	// crash makes the same.
	ID    int64
	Lease time.Duration // how long who has begun may take
	Kept  time.Duration // how long answers are kept
	Now   time.Time
}

// IdempotencyRecord is what is known under a key.
type IdempotencyRecord struct {
	Claimed     bool
	Again       bool // of Claimed: somebody had begun it before, and it is not known how far he came
	ID          int64
	Fingerprint []byte
	FirstAt     time.Time // when it was begun at first
	BegunAt     time.Time // when it was begun by who has it now; to the microsecond
	Done        bool
	Answer      []byte // of Done
}
