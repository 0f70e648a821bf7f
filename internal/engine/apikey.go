package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// NewAPIKey describes an API key to create.
type NewAPIKey struct {
	Name      string     `json:"name"` // owner or purpose
	Role      string     `json:"role"` // viewer, issuer, campaigner, approver, operator or admin
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
}

// APIKey is a new API key. Key is not stored anywhere.
type APIKey struct {
	ID, Prefix, Key string
	CreatedAt       time.Time
}

// CreateAPIKey migrates the configured database and creates an API key in it. So an
// operator with access to the database can create the first key. by is the actor
// for the audit. If CreateAPIKey returns a key and an error, the key was created.
func CreateAPIKey(ctx context.Context, cfg config.Config, n NewAPIKey, by string) (APIKey, error) {
	now := time.Now()
	if wrong := auth.CheckNewKey(n.Name, n.Role, n.ExpiresAt, now); len(wrong) > 0 {
		return APIKey{}, &reward.Error{
			Kind: reward.KindInvalid, Code: reward.CodeInvalid, Detail: wrong[0].Field + " " + wrong[0].Detail, Fields: wrong,
		}
	}
	if cfg.Database.URL == "" {
		if err := parts.MakeDataDir(cfg.Data.Dir); err != nil {
			return APIKey{}, err
		}
	}
	s, err := parts.OpenStore(ctx, cfg, "apikey", nil, obs.Log{})
	if err != nil {
		return APIKey{}, err
	}
	defer s.Close()
	err = migrate(ctx, cfg, "apikey", s, func(instances []string) error {
		return fmt.Errorf("%s run an older version: stop them first, or use their version of this command", strings.Join(instances, ", "))
	})
	if err != nil {
		return APIKey{}, err
	}
	known, err := s.APIKeyMakers(ctx)
	if err == nil {
		err = auth.CheckNameFree(n.Name, known, now)
	}
	if err != nil {
		return APIKey{}, err
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
		return made, fmt.Errorf("the key was created, but completing its audit entry failed: %w", err)
	}
	return made, nil
}
