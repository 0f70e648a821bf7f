package main

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/obs"
)

func (c *cli) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run an instance",
		Long: `Run an instance until SIGTERM or Ctrl-C. The first signal lets calls in flight end
and returns everything else. A second signal exits at once, which loses nothing
either.

Without settings, all engines run in this process and store their data in
./largesse-data. Only money.url is required: it names the provider.`,
		Example: `  largesse serve --money-url http://127.0.0.1:8090
  largesse serve --config largesse.yaml --listen 127.0.0.1:9000
  largesse serve --config largesse.yaml --roles api,ingest`,
	}
	settings := withSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := settings.load(c.world)
		if err != nil {
			return err
		}
		log, err := obs.NewLog(c.stderr, cfg.Log.Level, cfg.Log.Format)
		if err != nil {
			return err
		}
		ownFilesOnly()
		e, err := engine.New(cfg, log, engine.WithVersion(buildVersion().Version))
		if err != nil {
			return &usageError{err.Error()} // New checks only the settings
		}
		return e.Run(cmd.Context(), func() error { return c.announce(e.URL(), strings.Join(e.Brokers(), ",")) })
	}
	return cmd
}

// ownFilesOnly makes every file that this process creates from now on readable for its
// own user only.
func ownFilesOnly() { syscall.Umask(0o077) }

// announce prints that the instance is ready, and the addresses of its API (""
// if it has none) and of Kafka, for people and for scripts that use port 0.
func (c *cli) announce(server, kafka string) error {
	where := "without an API"
	if server != "" {
		where = "on " + server
	}
	if c.output == outputJSON {
		return c.printJSON(map[string]string{"server": server, "kafka": kafka})
	}
	_, err := fmt.Fprintf(c.stdout, "serving %s, Kafka at %s\n", where, kafka)
	return err
}
