package main

import (
	"bufio"
	"context"
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
	"github.com/largesse/largesse/internal/reward"
)

// world is what a command touches of the machine it runs on.
type world struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	// patience is how long commands wait for a server that refuses
	// connections, because it is still starting.
	patience time.Duration
}

// cli is one run of the command line.
type cli struct {
	world
	output string // --output
	server string // --server
	apiKey string // --api-key
	actor  string // --actor
	// transport carries the calls to a server; nil: the command makes none.
	transport *http.Transport
}

// The exit codes.
const (
	exitDone     = 0
	exitFailed   = 1
	exitWrongUse = 2
)

// run runs the command line and returns its exit code.
func run(ctx context.Context, args []string, w world) int {
	c := &cli{world: w}
	root := c.rootCommand()
	root.SetArgs(slices.Concat([]string{}, args)) // nil would mean os.Args
	err := root.ExecuteContext(ctx)
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
	if err == nil {
		return exitDone
	}
	if errors.Is(err, syscall.EPIPE) {
		return exitFailed // whoever read the output has gone: nobody to tell
	}
	text, code := describe(ctx, err, c.transport != nil)
	fmt.Fprintln(w.stderr, "largesse: "+text)
	return code
}

func (c *cli) rootCommand() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "largesse",
		Short: "Issue rewards at scale",
		Long: `Largesse issues rewards at scale: payouts to many targets through a slow
provider, each of them paid once, with books that balance; and coupons of a limited
stock, first come, first served, never more than there are.

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
				return wrongUse("--output %q is neither table nor json", c.output)
			}
			return nil
		},
	})
	// Before the commands that come with cobra, which note where stdout is.
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.PersistentFlags().StringVar(&c.output, "output", outputTable, "form of the output: table or json")
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
		c.migrateCommand(),
		c.moneySimCommand(),
		c.promotionCommand(),
		c.reconcileCommand(),
		c.serveCommand(),
		c.simCommand(),
		c.templateCommand(),
		c.userCommand(),
		c.versionCommand(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	furnish(root)
	c.completeIDs(root)
	return root
}

// furnish gives the commands that come with cobra the manners of the others:
// examples, and an exit code for wrong use.
func furnish(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Example = "  largesse help promotion create"
			cmd.Run, cmd.RunE = nil, help
		case "completion":
			group(cmd).Example = "  source <(largesse completion bash)"
			for _, shell := range cmd.Commands() {
				shell.Example = "  largesse completion " + shell.Name()
				shell.Args = args()
			}
		}
	}
}

// help shows the help of the command that is named.
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

// group makes a command that only holds others: alone it shows its help, and
// a name that it does not hold is wrong use.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		hint := "see " + cmd.CommandPath() + " --help"
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "did you mean " + near[0] + "?"
		}
		if !cmd.HasParent() {
			return wrongUse("there is no command %q; %s", args[0], hint)
		}
		return wrongUse("%s has no command %q; %s", shortPath(cmd), args[0], hint)
	}
	cmd.SuggestionsMinimumDistance = 2
	return cmd
}

// shortPath names a command without "largesse", which begins every error.
func shortPath(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// promotionArgs is args where the first is a promotion's ID. It is checked
// here, so that a wrong one is wrong use and needs no server.
func promotionArgs(names ...string) cobra.PositionalArgs {
	count := args(append([]string{"a promotion's ID"}, names...)...)
	return func(cmd *cobra.Command, given []string) error {
		if err := count(cmd, given); err != nil {
			return err
		}
		return checkPromotionID(given[0])
	}
}

func checkPromotionID(id string) error {
	if _, err := reward.ParsePromotionID(id); err != nil {
		return wrongUse("%q is no promotion's ID: that is a whole number from 1; see largesse promotion list", id)
	}
	return nil
}

// args takes as many arguments as there are names.
func args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if len(given) == len(names) {
			return nil
		}
		if len(names) == 0 {
			return wrongUse("%s takes no arguments, but got %q", shortPath(cmd), given[0])
		}
		return wrongUse("%s needs %s, but got %s; see %s --help", shortPath(cmd), strings.Join(names, " and "), countOf(int64(len(given)), "argument"), cmd.CommandPath())
	}
}

// complete offers words to the shell for a flag's value.
func complete(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is missing: a mistake in this program
	}
}

// env reads a variable of the environment; empty when it is not set.
func (w world) env(name string) string {
	for _, pair := range slices.Backward(w.environ) {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// colour says whether the terminal may be coloured.
func (w world) colour() bool { return w.env("NO_COLOR") == "" }

// live says whether stderr is a terminal on which lines can be redrawn: one
// that does not tell its size cannot be.
func (w world) live() bool {
	return terminalWidth(w.stderr) > 0 && w.env("TERM") != "dumb"
}

// talks adds the flags of commands that call a server.
func (c *cli) talks(cmd *cobra.Command) *cobra.Command {
	cmd.PersistentFlags().StringVar(&c.server, "server", "", "address of the server; else LARGESSE_SERVER, else "+client.DefaultServer)
	cmd.PersistentFlags().StringVar(&c.apiKey, "api-key", "", "API key; else LARGESSE_API_KEY, which does not show in the list of processes")
	cmd.PersistentFlags().StringVar(&c.actor, "actor", "", "who acts, for the books; else LARGESSE_ACTOR, else your name on this machine")
	return cmd
}

// who names the person that acts; empty when nobody is known.
func (c *cli) who() string {
	if c.actor != "" {
		return c.actor
	}
	if name := c.env("LARGESSE_ACTOR"); name != "" {
		return name
	}
	// Without an entry for this user the server takes it for anonymous.
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

// confirm asks before something that cannot be taken back. Where there is
// nobody to ask, yes must have been given.
func (c *cli) confirm(yes bool, what string) error {
	if yes {
		return nil
	}
	f, ok := c.stdin.(*os.File)
	if !ok || !isatty.IsTerminal(f.Fd()) {
		return wrongUse("this would %s; add --yes to say that you mean it", what)
	}
	fmt.Fprintf(c.stderr, "This will %s. Go on? [y/N] ", what)
	line, err := bufio.NewReader(c.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}

// connect makes the client of the server that was named.
func (c *cli) connect() (*client.Client, error) {
	server, key := c.server, c.apiKey
	if server == "" {
		server = c.env("LARGESSE_SERVER")
	}
	if server == "" {
		server = client.DefaultServer
	}
	if key == "" {
		key = c.env("LARGESSE_API_KEY")
	}
	c.transport = patientTransport(c.patience)
	cl, err := client.New(server, client.Options{APIKey: key, Actor: c.who(), Transport: c.transport, UserAgent: "largesse/" + buildVersion().Version})
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	return cl, nil
}
