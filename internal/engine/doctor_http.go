package engine

import (
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

// askTimeout limits the request to the program that listens on the API's address,
// and specMax limits its response, in bytes.
const (
	askTimeout = time.Second
	specMax    = 4 << 20
)

// lookAtHTTP checks whether the API could listen, or an instance does.
func lookAtHTTP(ctx context.Context, cfg config.Config) []Check {
	address := cfg.HTTP.Listen
	host, port, _ := config.HostPort(address)
	switch {
	case !slices.Contains(cfg.Roles, config.RoleAPI):
		return []Check{passed("http", "http.listen is not needed without the role %s", config.RoleAPI)}
	case port == 0:
		return []Check{passed("http", "the API uses any free port of %s", host)}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		_ = l.Close()
		return []Check{passed("http", "the API can listen on %s", address)}
	case !errors.Is(err, syscall.EADDRINUSE):
		return []Check{passed("http", "the API cannot listen: %s", oneLine(err)).but(CheckFail, "set http.listen to another address")}
	}
	if version, ok := askVersion(ctx, cfg.HTTP); ok {
		return []Check{passed("http", "the API of a running instance (version %s) listens on %s", version, address)}
	}
	return []Check{passed("http", "http.listen %s is in use by another program", address).
		but(CheckWarn, "stop the program that listens there (ss -ltnp shows it), or set http.listen to another port; otherwise an instance cannot start")}
}

// askVersion returns the version of the instance whose API listens at an address. ok
// reports whether it is an instance at all.
func askVersion(ctx context.Context, at config.HTTP) (version string, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	scheme := "http://"
	if at.TLSCert != "" {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+at.Listen+"/openapi.json", nil)
	if err != nil {
		return "", false
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		// The certificate may be valid for other names only. The request contains no
		// secret, and the address is on this machine.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return "", false
	}
	defer res.Body.Close()
	var spec struct {
		Info struct{ Title, Version string }
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, specMax)).Decode(&spec); err != nil || spec.Info.Title != api.Title {
		return "", false
	}
	return spec.Info.Version, true
}
