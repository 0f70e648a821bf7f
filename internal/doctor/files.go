package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/parts"
)

const expiresSoon = 14 * 24 * time.Hour

// certificateFiles lists the settings that name certificates. authorityFiles lists
// those that name trusted CAs, of which one valid CA is enough.
var (
	certificateFiles = []string{"http.tls-cert", "kafka.client-cert", "money.client-cert"}
	authorityFiles   = []string{"redis.ca-file", "kafka.ca-file", "money.ca-file"}
)

var secretFiles = []string{
	"database.password-file", "redis.password-file", "http.tls-key", "kafka.client-key", "kafka.sasl-password-file", "notify.smtp-password-file",
	"money.client-key", "money.token-file", "money.request.signature-key-file",
}

// lookAtFiles checks the files that the settings name, and the settings file. It
// skips files that cannot be read: the check of the part that needs them fails.
func lookAtFiles(_ context.Context, cfg config.Config, settingsFile string) []Check {
	checks := append(lookAtCertificates(cfg, time.Now()), lookAtSecrets(cfg, settingsFile)...)
	if slices.Contains(cfg.Roles, config.RoleAPI) {
		checks = append(checks, judgeOpenFiles(cfg, parts.OpenFilesMax()))
	}
	return checks
}

// lookAtCertificates returns one check for all valid certificates, and one for each
// of the others.
func lookAtCertificates(cfg config.Config, now time.Time) []Check {
	var lasting, faults []Check
	for _, name := range slices.Concat(certificateFiles, authorityFiles) {
		path := cfg.Text(name)
		from, until, ok := validity(path, slices.Contains(authorityFiles, name))
		if !ok {
			continue
		}
		if c := judgeCertificate(name, from, until, now); c.Status == CheckOK {
			lasting = append(lasting, c)
		} else {
			faults = append(faults, c)
		}
	}
	switch {
	case len(lasting) == 1:
		return append(faults, lasting[0])
	case len(lasting) > 1:
		found := make([]string, len(lasting))
		for i, c := range lasting {
			found[i] = c.Found
		}
		return append(faults, passed("files.certificates", "%s", strings.Join(found, ", ")))
	}
	return faults
}

// validity returns the time in which the certificates of a file are valid: all of a
// chain, or any of a list.
func validity(path string, list bool) (from, until time.Time, ok bool) {
	if path == "" {
		return from, until, false
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return from, until, false
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue
		}
		if !ok || list == cert.NotAfter.After(until) {
			until = cert.NotAfter
		}
		if !ok || list == cert.NotBefore.Before(from) {
			from = cert.NotBefore
		}
		ok = true
	}
	return from, until, ok
}

func judgeCertificate(name string, from, until, now time.Time) Check {
	day := until.UTC().Format(time.DateOnly)
	c := passed("files.certificates", "%s is valid until %s", name, day)
	const renew = "replace the file; running instances load the new one automatically"
	switch left := until.Sub(now); {
	case left <= 0:
		return c.saying("%s expired on %s", name, day).but(CheckFail, renew)
	case from.After(now):
		return c.saying("%s is not valid before %s", name, from.UTC().Format(time.RFC3339)).
			but(CheckFail, "check the clock of this machine, or use another certificate until then")
	case left <= expiresSoon:
		return c.saying("%s expires on %s", name, day).but(CheckWarn, renew)
	}
	return c
}

// lookAtSecrets checks whether every user of this machine can read files with
// secrets.
func lookAtSecrets(cfg config.Config, settingsFile string) []Check {
	var kept, open []string
	look := func(what, path string) {
		stat, err := os.Stat(path)
		switch {
		case path == "" || err != nil:
		case stat.Mode().Perm()&0o004 != 0:
			open = append(open, fmt.Sprintf("%s (%s)", path, what))
		default:
			kept = append(kept, what)
		}
	}
	for _, name := range secretFiles {
		path := cfg.Text(name)
		look(name, path)
	}
	if held := secretsIn(cfg, settingsFile); len(held) > 0 {
		look(strings.Join(held, ", "), settingsFile)
	}
	switch {
	case len(open) > 0:
		return []Check{passed("files.secrets", "every user of this machine can read %s", strings.Join(open, ", ")).
			but(CheckWarn, "run chmod o-r on them, and let the user that runs instances own them")}
	case len(kept) > 0:
		return []Check{passed("files.secrets", "access is restricted to %s", strings.Join(kept, ", "))}
	}
	return nil
}

func secretsIn(cfg config.Config, file string) []string {
	var held []string
	for _, s := range config.Settings {
		text := cfg.Text(s.Name)
		if s.Name == "redis.url" && cfg.Redis.PasswordFile != "" || s.Name == "notify.smtp-url" && cfg.Notify.SMTPPasswordFile != "" {
			continue // its user is only a name, although it is masked as a password without a user
		}
		if s.Secret && s.Shown(text) != text && strings.HasPrefix(cfg.Source(s.Name), "file "+file) {
			held = append(held, s.Name)
		}
	}
	return held
}

const connectionsFew = 1000

// judgeOpenFiles checks whether the limit of open files allows http.max-connections.
func judgeOpenFiles(cfg config.Config, files int) Check {
	n := parts.APIConnections(cfg, files)
	c := passed("files.open", "the API may have %d connections (http.max-connections is %d, the limit of open files %d)", n, cfg.HTTP.MaxConnections, files)
	asked := cfg.Source("http.max-connections") != config.SourceDefault
	if n < cfg.HTTP.MaxConnections && (asked || n < connectionsFew) {
		return c.but(CheckWarn, "raise the limit of open files (ulimit -n, LimitNOFILE=), or lower money.max-concurrency: calls to the provider need files, too")
	}
	return c
}
