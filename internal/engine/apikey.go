package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// NewAPIKey is an API key to be made.
type NewAPIKey struct {
	Name      string     `json:"name"` // whose it is, or what for
	Role      string     `json:"role"` // viewer, issuer, operator or admin
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
}

// APIKey is an API key that was made. Key is told once and kept nowhere.
type APIKey struct {
	ID, Prefix, Key string
	CreatedAt       time.Time
}

// CreateAPIKey makes an API key in the database that the settings name, which
// is brought up to date first: who can write there needs no key to make the
// first one. by says who does it, for the audit. A key that comes with an error
// was made.
func CreateAPIKey(ctx context.Context, cfg config.Config, n NewAPIKey, by string) (APIKey, error) {
	now := time.Now()
	if wrong := auth.CheckNewKey(n.Name, n.Role, n.ExpiresAt, now); len(wrong) > 0 {
		return APIKey{}, &reward.Error{
			Kind: reward.KindInvalid, Code: reward.CodeInvalid, Detail: wrong[0].Field + " " + wrong[0].Detail, Fields: wrong,
		}
	}
	if cfg.Database.URL == "" {
		if err := os.MkdirAll(cfg.Data.Dir, 0o750); err != nil {
			return APIKey{}, fmt.Errorf("make data.dir: %w", err)
		}
	}
	s, err := OpenStore(ctx, cfg, "apikey")
	if err != nil {
		return APIKey{}, err
	}
	defer s.Close()
	if err := s.Migrate(ctx); err != nil {
		return APIKey{}, fmt.Errorf("bring the database up to date: %w", err)
	}
	detail, err := json.Marshal(n)
	if err != nil {
		return APIKey{}, err
	}
	ids := service.NewIDs()
	line := store.AuditLine{
		ID: ids.Next(), At: now, Actor: by, Action: "create-api-key", Subject: "largesse apikey create", Detail: string(detail),
	}
	if err := s.AuditBegin(ctx, line); err != nil {
		return APIKey{}, err
	}
	key, text := auth.NewKey(ids.Next(), n.Name, auth.Role(n.Role), by, n.ExpiresAt, now)
	if err := s.APIKeyCreate(ctx, key); err != nil {
		return APIKey{}, err
	}
	made := APIKey{ID: fmt.Sprint(key.ID), Prefix: key.Prefix, Key: string(text), CreatedAt: now}
	if err := s.AuditEnd(ctx, line.ID, http.StatusCreated, "", time.Now()); err != nil {
		return made, fmt.Errorf("the key was made, but the audit does not say so: %w", err)
	}
	return made, nil
}
