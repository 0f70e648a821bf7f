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

// askTimeout bounds the question who listens at the API's address, and
// specMost its answer, in bytes.
const (
	askTimeout = time.Second
	specMost   = 4 << 20
)

// lookAtHTTP finds out whether the API could listen, or who does.
func lookAtHTTP(ctx context.Context, cfg config.Config) []Check {
	address := cfg.HTTP.Listen
	host, port, _ := config.HostPort(address)
	switch {
	case !slices.Contains(cfg.Roles, config.RoleAPI):
		return []Check{passed("http", "http.listen is not needed without the role %s", config.RoleAPI)}
	case port == 0:
		return []Check{passed("http", "the API takes any free port of %s", host)}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		_ = l.Close()
		return []Check{passed("http", "the API can listen on %s", address)}
	case !errors.Is(err, syscall.EADDRINUSE):
		return []Check{passed("http", "the API could not listen: %s", oneLine(err)).but(CheckFail, "name another address in http.listen")}
	}
	if version, ours := askVersion(ctx, cfg.HTTP); ours {
		return []Check{passed("http", "the API of a running instance (version %s) has %s", version, address)}
	}
	return []Check{passed("http", "http.listen %s is in use by another program", address).
		but(CheckWarn, "end what listens there (ss -ltnp shows it), or set http.listen to another port: an instance would not start")}
}

// askVersion asks who listens where the API should; ours says that it is the API
// of an instance.
func askVersion(ctx context.Context, at config.HTTP) (version string, ours bool) {
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
		// The certificate is for the names that others call it by. Nothing secret
		// is sent, and it is on this machine.
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
	if err := json.NewDecoder(io.LimitReader(res.Body, specMost)).Decode(&spec); err != nil || spec.Info.Title != api.Title {
		return "", false
	}
	return spec.Info.Version, true
}
