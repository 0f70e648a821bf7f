package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/api"
	"github.com/largesse/largesse/internal/config"
)

// askTimeout limits the request to the program that listens on an address,
// and answerMax limits its response, in bytes.
const (
	askTimeout = time.Second
	answerMax  = 4 << 20
)

// lookAtHTTP checks whether the API and the probes could listen, or an instance does.
func lookAtHTTP(ctx context.Context, cfg config.Config) []Check {
	var checks []Check
	if slices.Contains(cfg.Roles, config.RoleAPI) {
		checks = append(checks, lookAtPort(ctx, "http", "http.listen", "the API", cfg.HTTP.Listen, func(ctx context.Context) (string, bool) {
			version, ok := askVersion(ctx, cfg.HTTP)
			return " (version " + version + ")", ok
		}))
	} else {
		checks = append(checks, passed("http", "http.listen is not needed without the role %s", config.RoleAPI))
	}
	if at := cfg.HTTP.ProbeListen; at != "" {
		checks = append(checks, lookAtPort(ctx, "http.probes", "http.probe-listen", "the listener for probes", at, func(ctx context.Context) (string, bool) {
			return "", askProbes(ctx, at)
		}))
	}
	return checks
}

// lookAtPort checks whether an instance could listen on the address of a setting. ask asks
// what listens there already whether it is an instance, and returns more about it.
func lookAtPort(ctx context.Context, name, setting, what, address string, ask func(context.Context) (more string, ok bool)) Check {
	host, port, _ := config.HostPort(address)
	if port == 0 {
		return passed(name, "%s uses any free port of %s", what, host)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		_ = l.Close()
		return passed(name, "%s can listen on %s", what, address)
	case !errors.Is(err, syscall.EADDRINUSE):
		return passed(name, "%s cannot listen: %s", what, OneLine(err)).but(CheckFail, "set %s to another address", setting)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if more, ok := ask(ctx); ok {
		return passed(name, "%s of a running instance%s listens on %s", what, more, address)
	}
	return passed(name, "%s %s is in use by another program", setting, address).
		but(CheckWarn, "stop the program that listens there (ss -ltnp shows it), or set %s to another port; otherwise an instance cannot start", setting)
}

// askVersion returns the version of the instance whose API listens at an address. ok
// reports whether it is an instance at all.
func askVersion(ctx context.Context, at config.HTTP) (version string, ok bool) {
	scheme := "http://"
	if at.TLSCert != "" {
		scheme = "https://"
	}
	var spec struct {
		Info struct{ Title, Version string }
	}
	if err := json.Unmarshal(get(ctx, scheme+at.Listen+"/openapi.json"), &spec); err != nil || spec.Info.Title != api.Title {
		return "", false
	}
	return spec.Info.Version, true
}

// askProbes reports whether an instance listens for probes at an address.
func askProbes(ctx context.Context, address string) bool {
	return bytes.Contains(get(ctx, "http://"+address+"/metrics"), []byte("\nlargesse_build_info{"))
}

// get returns the beginning of what a URL on this machine answers, or nil.
func get(ctx context.Context, url string) []byte {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		// The certificate may be valid for other names only. The request contains no
		// secret, and the address is on this machine.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(res.Body, answerMax)) // a part may do
	return body
}
