package api

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	idempotencyMax = 255
	// idempotencyLease is the time after which a request in progress counts as
	// crashed, and a repeat may run it again.
	idempotencyLease = time.Minute
	// idempotencyTTL is the time that responses are retained.
	idempotencyTTL = 24 * time.Hour
	// idempotencyWriteTimeout is the timeout for writing a response.
	idempotencyWriteTimeout = 5 * time.Second
)

// ReplayedHeader marks the response to a repeated request, which ran nothing.
const ReplayedHeader = "Idempotent-Replayed"

type replayedKey struct{}

// withReplayed lets once mark the response.
func withReplayed(ctx huma.Context, next func(huma.Context)) {
	next(huma.WithValue(ctx, replayedKey{}, func() { ctx.SetHeader(ReplayedHeader, "true") }))
}

type claimKey struct{}

// claimOf returns the record of the request's idempotency key, or nil if it has none.
func claimOf(ctx context.Context) *store.IdempotencyRecord {
	c, _ := ctx.Value(claimKey{}).(*store.IdempotencyRecord)
	return c
}

// secretID returns the ID of something new that has a secret, which only the first response
// shows. If an earlier attempt of the request crashed before it returned its secret, undo
// removes what that attempt created, if it exists.
func (a *API) secretID(ctx context.Context, undo func(crashed int64) error) (int64, error) {
	c := claimOf(ctx)
	if c == nil {
		return a.cfg.IDs.Next(), nil
	}
	if !c.Again {
		return c.ID, nil
	}
	if err := undo(c.ID); err != nil && reward.KindOf(err) != reward.KindNotFound {
		return 0, err
	}
	return a.cfg.IDs.Next(), nil
}

// once runs an operation once per idempotency key. Repeats get the same response. The
// key of a failed operation is released, because it created nothing. If the first
// attempt crashed, the operation runs again under the ID that was reserved for it;
// see claimOf.
//
// An input with a method refuse can answer without a claim, which costs two writes. It
// returns why the operation would be refused, unless its key is known: then an earlier
// request with it may have succeeded. It must decide before it asks for the key: a key
// that is unknown afterwards belonged to no request that had succeeded at the time of the decision.
func once[I, O any](ctx context.Context, a *API, operation string, in *I, f func(ctx context.Context, in *I) (*O, error)) (*O, error) {
	given, err := idempotencyKey(ctx)
	switch {
	case err != nil:
		return nil, err
	case given == "":
		return f(ctx, in)
	}
	c := callerOf(ctx)
	whose := []string{strconv.FormatInt(c.KeyID, 10), string(c.Role), c.Name, operation, given}
	key, seal := hashOf("key", whose), hashOf("answer", whose)
	print, err := fingerprint(in)
	if err != nil {
		return nil, err
	}
	if early, ok := any(in).(interface {
		refuse(ctx context.Context, a *API, known func() (bool, error)) error
	}); ok {
		if err := early.refuse(ctx, a, func() (bool, error) { return a.cfg.Rows.IdempotencyKnown(ctx, key) }); err != nil {
			return nil, err
		}
	}
	rec, err := a.cfg.Rows.IdempotencyBegin(ctx, store.IdempotencyBeginParams{
		Key: key, Fingerprint: print, ID: a.cfg.IDs.Next(), Lease: idempotencyLease, Kept: idempotencyTTL, Now: time.Now(),
	})
	switch {
	case err != nil:
		return nil, err
	case string(rec.Fingerprint) != string(print):
		return nil, web.NewProblem(http.StatusUnprocessableEntity, CodeKeyReused, "this "+web.IdempotencyHeader+" belongs to another request; use a new key for each new resource")
	case rec.Done:
		if mark, ok := ctx.Value(replayedKey{}).(func()); ok {
			mark()
		}
		out := new(O)
		if err := unseal(seal, rec.Answer, out); err != nil {
			return nil, err
		}
		if old, ok := any(out).(interface {
			replayed(ctx context.Context, a *API) error
		}); ok {
			err = old.replayed(ctx, a)
		}
		return out, err
	case !rec.Claimed:
		p := web.NewProblem(http.StatusConflict, CodeInProgress, "a request with this "+web.IdempotencyHeader+" is still in progress; repeat it later to get its response")
		p.RetryAfter = 1
		return nil, p
	}
	out, err := f(context.WithValue(ctx, claimKey{}, &rec), in)
	if err != nil {
		p := a.ProblemOf(ctx, err)
		a.settle(ctx, func(ctx context.Context) error {
			if p.Status >= http.StatusInternalServerError {
				return a.cfg.Rows.IdempotencyRelease(ctx, key, rec.BegunAt) // the change may have been made
			}
			return a.cfg.Rows.IdempotencyDrop(ctx, key, rec.BegunAt)
		})
		return nil, p
	}
	a.settle(ctx, func(ctx context.Context) error {
		var kept any = out
		if secret, ok := kept.(interface{ withoutSecret() any }); ok {
			kept = secret.withoutSecret() // seal is no secret: anybody who knows the request can compute it
		}
		answer, err := sealed(seal, kept)
		if err != nil {
			return err
		}
		_, err = a.cfg.Rows.IdempotencyFinish(ctx, key, rec.BegunAt, answer)
		return err
	})
	return out, nil
}

// settle records the outcome of a key, even if the caller has left. If that fails,
// the key becomes free when its lease expires.
func (a *API) settle(ctx context.Context, write func(ctx context.Context) error) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), idempotencyWriteTimeout)
	defer cancel()
	if err := write(late); err != nil {
		a.log.Warn("storing idempotent response failed", err, "request_id", web.RequestID(ctx))
	}
}

func idempotencyKey(ctx context.Context) (string, error) {
	given := callerOf(ctx).idempotency
	if len(given) == 0 {
		return "", nil
	}
	odd := func(r rune) bool { return r < ' ' || r > '~' }
	if len(given) > 1 || given[0] == "" || len(given[0]) > idempotencyMax || strings.ContainsFunc(given[0], odd) {
		return "", web.Malformed(web.IdempotencyHeader, fmt.Sprintf("must be one text of 1 to %d visible ASCII characters", idempotencyMax))
	}
	return given[0], nil
}

func idempotencyParam() *huma.Param {
	return &huma.Param{
		Name: web.IdempotencyHeader, In: "header",
		Description: "For 24 hours, a repeat with the same key gets the response of the first request, without a new key or secret, and creates nothing. Failed requests can be repeated",
		Schema:      &huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(idempotencyMax), Pattern: "^[ -~]+$"},
	}
}

// fingerprint returns a hash of a request without its headers.
func fingerprint(in any) ([]byte, error) {
	v := reflect.Indirect(reflect.ValueOf(in))
	said := map[string]any{}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.IsExported() && f.Tag.Get("header") == "" {
			said[f.Name] = v.Field(i).Interface()
		}
	}
	text, err := json.Marshal(said)
	if err != nil {
		return nil, fmt.Errorf("hashing the request failed: %w", err)
	}
	return hashOf("request", []string{string(text)}), nil
}

// hashOf hashes a list of texts. Different lists have different input to the hash.
func hashOf(kind string, texts []string) []byte {
	h := sha256.New()
	for _, t := range append([]string{kind}, texts...) {
		_, _ = fmt.Fprintf(h, "%d:%s", len(t), t) // writing to a hash never fails
	}
	return h.Sum(nil)
}

// sealed encrypts a response so that only a caller with its idempotency key can read
// it.
func sealed(key []byte, out any) ([]byte, error) {
	text, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encoding the idempotent response failed: %w", err)
	}
	box, err := boxOf(key)
	if err != nil {
		return nil, err
	}
	return box.Seal(nil, nil, text, nil), nil
}

func unseal(key, answer []byte, out any) error {
	box, err := boxOf(key)
	if err != nil {
		return err
	}
	text, err := box.Open(nil, nil, answer, nil)
	if err != nil {
		return fmt.Errorf("decrypting the stored response of %d bytes failed: %w", len(answer), err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("decoding the stored response failed: %w", err)
	}
	return nil
}

// boxOf returns the cipher for a key. What it seals begins with a random nonce.
func boxOf(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
