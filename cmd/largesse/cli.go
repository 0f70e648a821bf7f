package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
)

// world is the part of the machine that a command uses.
type world struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	patience       time.Duration // wait for a server that refuses connections because it is still starting
}

// cli holds the state of one run of the command line.
type cli struct {
	world
	output  string  // --output
	flags   profile // --server, --api-key, --api-key-file and --ca-file
	profile string  // --profile
	actor   string  // --actor
	limit   int     // --limit of the command that runs
	yes     bool    // --yes

	transport *http.Transport // of the calls to a server; nil: the command makes none
	called    string          // the server, with a password masked
}

// The exit codes.
const (
	exitDone     = 0
	exitFailed   = 1
	exitWrongUse = 2
)

// run executes the command line and returns its exit code.
func run(ctx context.Context, args []string, w world) int {
	c := &cli{world: w}
	root := c.rootCommand()
	root.SetArgs(slices.Concat([]string{}, args)) // nil would mean os.Args
	cmd, err := root.ExecuteContextC(ctx)
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
	if err == nil {
		return exitDone
	}
	if errors.Is(err, syscall.EPIPE) {
		return exitFailed // nobody reads the output any more
	}
	text, code := describe(ctx, cmd, err, c.called)
	fmt.Fprintln(w.stderr, "largesse: "+text)
	return code
}

func (c *cli) rootCommand() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "largesse",
		Short: "Issue rewards at scale",
		Long: `Largesse is a reward issuance engine. It pays many targets through a provider that
may be slow or unreliable, charges each target at most once, and reconciles every
payout with the provider. And it issues limited coupons in order of arrival, never
more than exist.

Exit codes: 0 done, 1 failed, 2 wrong use.`,
		Example: `  largesse moneysim &
  largesse serve --money-url http://127.0.0.1:8090
  largesse promotion create --name Spring --type point --amount 1000 --file targets.csv --start
  largesse promotion watch ID
  largesse template create --name Spring --quantity 10000
  largesse coupon issue ID --user u7 --wait 5s`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if c.output != outputTable && c.output != outputJSON {
				return wrongUse("--output %q must be table or json", c.output)
			}
			return nil
		},
	})
	// Set this before cobra adds its own commands, which keep the stdout of
	// that moment.
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.PersistentFlags().StringVar(&c.output, "output", outputTable, "output format: table or json")
	complete(root, "output", outputTable, outputJSON)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		c.apiKeyCommand(),
		c.auditCommand(),
		c.benchCommand(),
		c.configCommand(),
		c.couponCommand(),
		c.deadLetterCommand(),
		c.demoCommand(),
		c.doctorCommand(),
		c.manCommand(),
		c.meCommand(),
		c.migrateCommand(),
		c.moneySimCommand(),
		c.payoutCommand(),
		c.profileCommand(),
		c.promotionCommand(),
		c.providerCommand(),
		c.reconcileCommand(),
		c.serveCommand(),
		c.simCommand(),
		c.templateCommand(),
		c.userCommand(),
		c.versionCommand(),
		c.webhookCommand(),
	)
	root.Version = buildVersion().Version
	root.SetVersionTemplate("largesse {{.Version}}\n")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	furnish(root)
	c.takeArguments(root)
	return root
}

// furnish gives cobra's own commands what the others have: examples, and an
// exit code for wrong use.
func furnish(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Example = "  largesse help promotion create"
			cmd.Run, cmd.RunE = nil, help
			cmd.Args = cobra.ArbitraryArgs
		case "completion":
			group(cmd).Example = "  source <(largesse completion bash)"
			for _, shell := range cmd.Commands() {
				shell.Example = "  largesse completion " + shell.Name()
				shell.Args = nil
			}
		}
	}
}

func help(cmd *cobra.Command, names []string) error {
	found, rest, err := cmd.Root().Find(names)
	switch {
	case err != nil:
		return wrongUse("%v; see largesse --help", err)
	case len(rest) == 0:
		found.InitDefaultHelpFlag()
		return found.Help()
	case found.HasSubCommands():
		return found.RunE(found, rest)
	}
	return wrongUse("%s has no command %q; see %s --help", shortPath(found), rest[0], found.CommandPath())
}

// group prepares a command that only has subcommands. Alone it prints its help;
// an unknown subcommand is wrong use.
func group(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(subcommands...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.SuggestionsMinimumDistance = 2
	return cmd
}

// unknownCommand returns the error for a subcommand that a group does not have. It
// suggests the nearest one.
func unknownCommand(cmd *cobra.Command, name string) error {
	hint := "see " + cmd.CommandPath() + " --help"
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		hint = "did you mean " + cmp.Or(config.ClosestName(name, near), near[0]) + "?"
	}
	if !cmd.HasParent() {
		return wrongUse("there is no command %q; %s", name, hint)
	}
	return wrongUse("%s has no command %q; %s", shortPath(cmd), name, hint)
}

// shortPath returns the path of a command without "largesse", which begins
// every error.
func shortPath(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// atMostOne accepts one argument or none. takes says so.
func atMostOne(takes string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if len(given) > 1 {
			return wrongUse("%s takes %s, but got %s; see %s --help", shortPath(cmd), takes, countOf(int64(len(given)), "argument"), cmd.CommandPath())
		}
		return nil
	}
}

// env returns an environment variable, or "" if it is not set.
func (w world) env(name string) string {
	for _, pair := range slices.Backward(w.environ) {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

func (w world) colour() bool { return w.env("NO_COLOR") == "" }

// live reports whether stderr is a terminal that can redraw lines. A terminal
// that does not report its size cannot.
func (w world) live() bool {
	return terminalWidth(w.stderr) > 0 && w.env("TERM") != "dumb"
}

// talks adds the flags of commands that call a server.
func (c *cli) talks(cmd *cobra.Command) *cobra.Command {
	flags := cmd.PersistentFlags()
	flags.StringVar(&c.flags.Server, "server", "", "URL of the server; default: LARGESSE_SERVER, then the current profile, then "+client.DefaultServer)
	flags.StringVar(&c.profile, "profile", "", "profile with the server and its API key; default: LARGESSE_PROFILE, then that of largesse profile use")
	flags.StringVar(&c.flags.APIKey, "api-key", "", "API key; default: LARGESSE_API_KEY, which the process list does not show, then the profile's")
	flags.StringVar(&c.flags.APIKeyFile, "api-key-file", "", "file with the API key; default: LARGESSE_API_KEY_FILE, then the profile's")
	flags.StringVar(&c.flags.CAFile, "ca-file", "", "PEM file with the authority that signed the server's certificate; default: LARGESSE_CA_FILE, then the profile's, then those of the system")
	flags.StringVar(&c.actor, "actor", "", "name to record as the actor; default: LARGESSE_ACTOR, then your user name on this machine")
	completeBy(cmd, "profile", func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return c.offerProfiles(cmd, nil, begun)
	})
	return cmd
}

// who returns the name of the actor, or "".
func (c *cli) who() string {
	name := cmp.Or(c.actor, c.env("LARGESSE_ACTOR"))
	if name != "" {
		return name
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "" // the server records the call as anonymous
}

// confirm asks before an action that cannot be undone. Without a terminal, --yes
// must be set.
func (c *cli) confirm(what string) error {
	if c.yes {
		return nil
	}
	f, ok := c.stdin.(*os.File)
	if !ok || !isatty.IsTerminal(f.Fd()) {
		return wrongUse("this would %s; add --yes to confirm", what)
	}
	fmt.Fprintf(c.stderr, "This will %s. Continue? [y/N] ", what)
	line, err := bufio.NewReader(c.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return errors.New("cancelled: nothing was changed")
	}
	return nil
}

func (c *cli) connect() (*client.Client, error) {
	t, err := c.target()
	if err != nil {
		return nil, err
	}
	key := t.APIKey
	if key == "" && t.APIKeyFile != "" {
		if key, err = keyOf(t.APIKeyFile); err != nil {
			return nil, err
		}
	}
	c.transport = patientTransport(c.patience)
	if t.CAFile != "" {
		pool, err := authorities(t.CAFile)
		if err != nil {
			return nil, err
		}
		c.transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	cl, err := client.New(cmp.Or(t.Server, client.DefaultServer), client.Options{APIKey: key, Actor: c.who(), Transport: c.transport, UserAgent: "largesse/" + buildVersion().Version})
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	c.called = cl.Server()
	return cl, nil
}

func keyOf(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", wrongUse("read the API key: %v", err)
	}
	key := strings.TrimSpace(string(text))
	if key == "" {
		return "", wrongUse("the file %s has no API key", file)
	}
	return key, nil
}

func authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, wrongUse("read the certificates of --ca-file: %v", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, wrongUse("--ca-file %s has no PEM certificate", file)
	}
	return pool, nil
}
