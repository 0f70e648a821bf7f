package api

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	idempotencyMax = 255
	// idempotencyLease is how long a request may take before its key is taken
	// for one of an instance that has died.
	idempotencyLease = time.Minute
	// idempotencyKept is how long answers are kept.
	idempotencyKept = 24 * time.Hour
	idempotencyWait = 5 * time.Second
)

// creating are the calls that make something new each time.
var creating = map[string]bool{
	"create-promotion": true, "create-template": true, "issue-coupon": true, "reconcile": true, "create-api-key": true,
}

type claimKey struct{}

// claimOf returns what the request that ctx belongs to holds under its
// idempotency key; nil = it has none.
func claimOf(ctx context.Context) *store.IdempotencyRecord {
	c, _ := ctx.Value(claimKey{}).(*store.IdempotencyRecord)
	return c
}

// once carries a call out once per idempotency key: who comes later hears the
// same answer. What failed is let go, since nothing came of it. A key whose
// holder has died is carried out again under the id that was reserved for it at
// first; see claimOf.
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
	rec, err := a.cfg.Idempotencies.IdempotencyBegin(ctx, store.IdempotencyBeginParams{
		Key: key, Fingerprint: print, ID: a.cfg.IDs.Next(), Lease: idempotencyLease, Kept: idempotencyKept, Now: time.Now(),
	})
	switch {
	case err != nil:
		return nil, err
	case string(rec.Fingerprint) != string(print):
		return nil, web.NewProblem(http.StatusUnprocessableEntity, CodeKeyReused, "this "+web.IdempotencyHeader+" was used with another request; take a new one for each thing that is to be made")
	case rec.Done:
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
		p := web.NewProblem(http.StatusConflict, CodeInProgress, "a request with this "+web.IdempotencyHeader+" is under way; ask again for its answer")
		p.RetryAfter = 1
		return nil, p
	}
	out, err := f(context.WithValue(ctx, claimKey{}, &rec), in)
	if err != nil {
		p := a.ProblemOf(ctx, err)
		a.settle(ctx, func(ctx context.Context) error {
			if p.Status >= http.StatusInternalServerError {
				return a.cfg.Idempotencies.IdempotencyRelease(ctx, key, rec.BegunAt) // it may have happened
			}
			return a.cfg.Idempotencies.IdempotencyDrop(ctx, key, rec.BegunAt)
		})
		return nil, p
	}
	a.settle(ctx, func(ctx context.Context) error {
		answer, err := sealed(seal, out)
		if err != nil {
			return err
		}
		_, err = a.cfg.Idempotencies.IdempotencyFinish(ctx, key, rec.BegunAt, answer)
		return err
	})
	return out, nil
}

// settle writes what becomes of a key, though the caller may have left. When
// that cannot be written, the key is free after its lease.
func (a *API) settle(ctx context.Context, write func(ctx context.Context) error) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), idempotencyWait)
	defer cancel()
	if err := write(late); err != nil {
		a.log.Warn(obs.Failed, err, "request_id", web.RequestID(ctx), "what", "answer under an idempotency key")
	}
}

// idempotencyKey reads the key of a request; "" = none.
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

// idempotencyParam describes the header.
func idempotencyParam() *huma.Param {
	low, high := 1, idempotencyMax
	return &huma.Param{
		Name: web.IdempotencyHeader, In: "header",
		Description: "Makes a repeat safe: for 24 hours the same key with the same request answers the same, and makes nothing new. " +
			"Another request under it is 422 IDEMPOTENCY_KEY_REUSED, one that is still under way 409 IDEMPOTENCY_IN_PROGRESS. What failed keeps no answer",
		Schema: &huma.Schema{Type: huma.TypeString, MinLength: &low, MaxLength: &high, Pattern: "^[ -~]+$"},
	}
}

// fingerprint stands for what a request says, but for its headers.
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
		return nil, fmt.Errorf("fingerprint of a request: %w", err)
	}
	return hashOf("request", []string{string(text)}), nil
}

// hashOf hashes texts so that no two lists of them look alike.
func hashOf(kind string, texts []string) []byte {
	h := sha256.New()
	for _, t := range append([]string{kind}, texts...) {
		_, _ = fmt.Fprintf(h, "%d:%s", len(t), t) // a hash takes everything
	}
	return h.Sum(nil)
}

// sealed is an answer that only who knows its idempotency key can read: one may
// hold a new API key.
func sealed(key []byte, out any) ([]byte, error) {
	text, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("keep an answer: %w", err)
	}
	box, err := boxOf(key)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, box.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return box.Seal(nonce, nonce, text, nil), nil
}

func unseal(key, answer []byte, out any) error {
	box, err := boxOf(key)
	if err != nil {
		return err
	}
	if len(answer) < box.NonceSize() {
		return fmt.Errorf("a kept answer has only %d bytes", len(answer))
	}
	text, err := box.Open(nil, answer[:box.NonceSize()], answer[box.NonceSize():], nil)
	if err != nil {
		return fmt.Errorf("open a kept answer: %w", err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("read a kept answer: %w", err)
	}
	return nil
}

func boxOf(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
