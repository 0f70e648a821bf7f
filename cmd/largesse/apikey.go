package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/engine"
)

func (c *cli) apiKeyCommand() *cobra.Command {
	cmd := c.talks(group(&cobra.Command{
		Use:     "apikey",
		Aliases: []string{"apikeys"},
		Short:   "Make, list and revoke the keys that callers of the API need",
		Long: `Make, list and revoke the keys that callers of the API need (auth.mode apikey or
jwt). viewer reads; issuer issues, uses and cancels coupons; operator does
everything but keys; admin keys too.`,
		Example: `  largesse apikey create --role admin
  largesse apikey list
  largesse apikey revoke ID`,
	}))
	cmd.AddCommand(c.apiKeyCreateCommand(), c.apiKeyListCommand(), c.apiKeyRevokeCommand())
	return cmd
}

// apiKeyRoles are the roles of a key.
var apiKeyRoles = []string{"viewer", "issuer", "operator", "admin"}

func (c *cli) apiKeyCreateCommand() *cobra.Command {
	var (
		name, role string
		expires    time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create --role ROLE",
		Short: "Make an API key, which is shown once and kept nowhere",
		Long: `Make an API key, which is shown once and kept nowhere. With a key at hand
(--api-key or LARGESSE_API_KEY) the server makes it. Without one it is made
straight in the database that the settings name, which is how the first one
comes about; an instance may be running.`,
		Example: `  largesse apikey create --role admin
  largesse apikey create --role admin --database-url postgres://largesse@db.internal/largesse
  largesse apikey create --role issuer --name "till 4" --expires 2160h`,
		Args: args(),
	}
	settings := withSettings(cmd)
	flags := cmd.Flags()
	flags.StringVar(&role, "role", "", "what it may do: "+strings.Join(apiKeyRoles, ", "))
	flags.StringVar(&name, "name", "", "whose it is, or what for; stands in the books as who acts; else your name on this machine")
	flags.DurationVar(&expires, "expires", 0, "how long it is good, e.g. 2160h; 0s: for ever")
	complete(cmd, "role", apiKeyRoles...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !slices.Contains(apiKeyRoles, role) {
			return wrongUse("--role %q is none of %s", role, strings.Join(apiKeyRoles, ", "))
		}
		if expires < 0 {
			return wrongUse("--expires %s is over already", expires)
		}
		key := engine.NewAPIKey{Name: name, Role: role}
		if name == "" {
			key.Name = cmp.Or(c.who(), role)
		}
		if expires > 0 {
			at := time.Now().Add(expires)
			key.ExpiresAt = &at
		}
		if c.hasAPIKey() {
			return c.createAPIKeyThere(cmd, key)
		}
		return c.createAPIKeyHere(cmd, key, settings)
	}
	return cmd
}

// hasAPIKey says whether there is a key to show to a server.
func (c *cli) hasAPIKey() bool { return c.apiKey != "" || c.env("LARGESSE_API_KEY") != "" }

func (c *cli) createAPIKeyThere(cmd *cobra.Command, key engine.NewAPIKey) error {
	cl, err := c.connect()
	if err != nil {
		return err
	}
	made, err := cl.CreateAPIKey(cmd.Context(), client.NewAPIKey{Name: key.Name, Role: key.Role, ExpiresAt: key.ExpiresAt})
	if err != nil {
		return err
	}
	return c.printNewKey(made)
}

func (c *cli) createAPIKeyHere(cmd *cobra.Command, key engine.NewAPIKey, settings *settingFlags) error {
	cfg, err := settings.load(c.world)
	if err != nil {
		return err
	}
	by := c.who()
	if by == "" {
		by = "largesse apikey create"
	}
	made, err := engine.CreateAPIKey(cmd.Context(), cfg, key, by)
	if made.Key == "" {
		return err
	}
	printed := c.printNewKey(client.APIKey{
		ID: made.ID, Name: key.Name, Prefix: made.Prefix, Role: key.Role, Key: made.Key, CreatedAt: made.CreatedAt.UTC(), CreatedBy: by, ExpiresAt: key.ExpiresAt,
	})
	return errors.Join(err, printed)
}

func (c *cli) printNewKey(k client.APIKey) error {
	if c.output == outputJSON {
		return c.printJSON(k)
	}
	until := "for ever"
	if k.ExpiresAt != nil {
		until = "until " + moment(k.ExpiresAt)
	}
	if _, err := fmt.Fprintln(c.stdout, k.Key); err != nil {
		return err
	}
	_, err := fmt.Fprintf(c.stderr, "This is the key %s of %s, role %s, good %s. It is not shown again: keep it, and export it as LARGESSE_API_KEY.\n",
		k.ID, printable(k.Name), k.Role, until)
	return err
}

func (c *cli) apiKeyListCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List API keys, the newest first, without their secrets",
		Example: `  largesse apikey list
  largesse apikey list --limit 0 --output json`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			return printList(c, cl.APIKeys(cmd.Context()), listing[client.APIKey]{
				header: []string{"ID", "NAME", "PREFIX", "ROLE", "STATE", "LAST USED", "CREATED", "BY"},
				row: func(k client.APIKey) []string {
					return []string{k.ID, k.Name, k.Prefix, k.Role, keyState(k, time.Now()), moment(k.LastUsedAt), moment(&k.CreatedAt), k.CreatedBy}
				},
				limit: limit,
				empty: "there are no API keys; make one with largesse apikey create",
				cuts:  []string{"NAME", "BY"},
			})
		},
	}
	limitFlag(cmd, &limit)
	return cmd
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

func (c *cli) apiKeyRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke an API key for good; it is refused within a second",
		Example: `  largesse apikey revoke ID`,
		Args:    args("an API key's ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			if err := cl.RevokeAPIKey(cmd.Context(), args[0]); err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(map[string]string{"revoked": args[0]})
			}
			_, err = fmt.Fprintf(c.stdout, "API key %s is revoked\n", args[0])
			return err
		},
	}
}
