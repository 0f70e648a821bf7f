package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/engine"
)

func (c *cli) apiKeyCommand() *cobra.Command {
	return c.talks(group(&cobra.Command{
		Use:     "apikey",
		Aliases: []string{"apikeys"},
		Short:   "Create, list and revoke API keys",
		Long: `Create, list and revoke the API keys that callers need if auth.mode is apikey or
jwt. The role of a key decides what it allows. viewer: read; issuer: issue, use and
cancel coupons; campaigner: read, and run promotions and coupon templates; approver:
read, and approve what others made or reject it; operator: everything except API keys;
admin: everything.`,
		Example: `  largesse apikey create --role admin
  largesse apikey list
  largesse apikey revoke ID --yes`,
	}, c.apiKeyCreateCommand(), c.apiKeyListCommand(), callCommand(c, &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke an API key permanently; every instance refuses it within a second",
		Example: `  largesse apikey revoke ID --yes`,
	}, aboutID("revoke API key %s permanently"), withID("revoked", (*client.Client).RevokeAPIKey), line(c, func(r map[string]string) string {
		return fmt.Sprintf("API key %s is revoked", r["revoked"])
	}))))
}

var apiKeyRoles = []string{"viewer", "issuer", "campaigner", "approver", "operator", "admin"}

func (c *cli) apiKeyCreateCommand() *cobra.Command {
	var (
		name, role string
		expires    time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create --role ROLE",
		Short: "Create an API key; its secret is shown once",
		Long: `Create an API key. Its secret is shown once and stored nowhere. With an API key
(--api-key, --api-key-file, LARGESSE_API_KEY or a profile), the server creates the
new key. Without one, this command writes the new key directly to the database that
the settings name; create your first key this way. Instances may be running meanwhile.`,
		Example: `  largesse apikey create --role admin
  largesse apikey create --role admin --database-url postgres://largesse@db.internal/largesse
  largesse apikey create --role issuer --name "till 4" --expires 2160h`,
	}
	settings := withSettings(cmd)
	flags := cmd.Flags()
	flags.StringVar(&role, "role", "", "role of the key: "+strings.Join(apiKeyRoles, ", "))
	flags.StringVar(&name, "name", "", "owner or purpose of the key, recorded as the actor; default: your user name on this machine")
	addFlag(flags, &expires, "expires", "time until the key expires, e.g. 2160h; 0s: it does not expire",
		bounded(time.ParseDuration, 0, 0, "; 0s: the key does not expire"))
	complete(cmd, "role", apiKeyRoles...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !slices.Contains(apiKeyRoles, role) {
			return wrongUse("--role %q must be one of %s", role, strings.Join(apiKeyRoles, ", "))
		}
		key := engine.NewAPIKey{Name: name, Role: role}
		if name == "" {
			key.Name = cmp.Or(c.who(), role)
		}
		if expires > 0 {
			at := time.Now().Add(expires)
			key.ExpiresAt = &at
		}
		t, err := c.target()
		if err != nil {
			return err
		}
		if t.APIKey == "" && t.APIKeyFile == "" {
			return c.createAPIKeyHere(cmd, key, settings)
		}
		cl, err := c.connect()
		if err != nil {
			return err
		}
		made, err := cl.CreateAPIKey(cmd.Context(), client.NewAPIKey{Name: key.Name, Role: key.Role, ExpiresAt: key.ExpiresAt})
		return c.printNewKey(made, err)
	}
	return cmd
}

func (c *cli) createAPIKeyHere(cmd *cobra.Command, key engine.NewAPIKey, settings *settingFlags) error {
	cfg, err := settings.load(c.world)
	if err != nil {
		return err
	}
	by := cmp.Or(c.who(), "largesse apikey create")
	made, err := engine.CreateAPIKey(cmd.Context(), cfg, key, by)
	if made.Key == "" {
		return err
	}
	printed := c.printNewKey(client.APIKey{
		ID: made.ID, Name: key.Name, Prefix: made.Prefix, Role: key.Role, Key: made.Key, CreatedAt: made.CreatedAt.UTC(), CreatedBy: by, ExpiresAt: key.ExpiresAt,
	}, nil)
	if cfg.Database.URL == "" && c.output != outputJSON {
		_, told := fmt.Fprintf(c.stderr, "It is in the embedded database in %s, because database.url is empty: instances with another database do not know it.\n", cfg.Data.Dir)
		printed = errors.Join(printed, told)
	}
	return errors.Join(err, printed)
}

func (c *cli) printNewKey(k client.APIKey, err error) error {
	until := "does not expire"
	if k.ExpiresAt != nil {
		until = "expires at " + moment(k.ExpiresAt)
	}
	return c.showSecret(k, err, k.Key, fmt.Sprintf(
		"This is API key %s of %s with the role %s; it %s. It is not shown again: store it, and export it as LARGESSE_API_KEY.", k.ID, k.Name, k.Role, until))
}

func (c *cli) apiKeyListCommand() *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:   "list",
		Short: "List API keys without their secrets, newest first",
		Example: `  largesse apikey list
  largesse apikey list --limit 0 --output json`,
	}, listing[client.APIKey]{
		header: []string{"ID", "NAME", "PREFIX", "ROLE", "STATE", "LAST USED", "CREATED", "BY"},
		row: func(k client.APIKey) []string {
			return []string{k.ID, k.Name, k.Prefix, k.Role, keyState(k, time.Now()), moment(k.LastUsedAt), moment(&k.CreatedAt), k.CreatedBy}
		},
		empty: "there are no API keys; create one: largesse apikey create --help",
		cuts:  []string{"NAME", "BY"},
	}, func(ctx context.Context, cl *client.Client, _ []string) iter.Seq2[client.APIKey, error] {
		return cl.APIKeys(ctx)
	})
}

func keyState(k client.APIKey, now time.Time) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case k.ExpiresAt != nil && !now.Before(*k.ExpiresAt):
		return "expired"
	}
	return "good"
}
