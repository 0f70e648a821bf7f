package web

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// clientAddress returns the address that a request came from. If that is a trusted
// proxy, it is the last address in Forwarded or X-Forwarded-For that is not a trusted
// proxy: everything to the left of it is only what the client claims. If the request has
// both headers and they differ, the client may have sent one of them, so it is the
// proxy's own address.
func clientAddress(r *http.Request, trusted []netip.Prefix) string {
	peer, ok := parseAddress(r.RemoteAddr)
	if !ok {
		return ""
	}
	if !isTrusted(peer, trusted) {
		return peer.String()
	}
	standard, list := r.Header.Values("Forwarded"), r.Header.Values("X-Forwarded-For")
	a, b := lastUntrusted(peer, forwardedFor(standard), trusted), lastUntrusted(peer, splitList(list), trusted)
	switch {
	case len(standard) == 0:
		return b.String()
	case len(list) == 0 || a == b:
		return a.String()
	}
	return peer.String()
}

// lastUntrusted walks a chain of addresses from the right to the first one that is not a
// trusted proxy. It stops at an address that cannot be parsed, with the one before it.
func lastUntrusted(peer netip.Addr, chain []string, trusted []netip.Prefix) netip.Addr {
	for _, text := range slices.Backward(chain) {
		address, ok := parseAddress(text)
		if !ok {
			return peer
		}
		if peer = address; !isTrusted(address, trusted) {
			return address
		}
	}
	return peer
}

func fromProxy(r *http.Request, trusted []netip.Prefix) bool {
	peer, ok := parseAddress(r.RemoteAddr)
	return ok && isTrusted(peer, trusted)
}

func isTrusted(a netip.Addr, trusted []netip.Prefix) bool {
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(a) })
}

// parseAddress parses an IP address with or without a port.
func parseAddress(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return a.Unmap().WithZone(""), err == nil
}

func splitList(values []string) []string {
	if len(values) == 0 {
		return nil
	}
	return strings.Split(strings.Join(values, ","), ",")
}

// forwardedFor returns the for parameter of each element of Forwarded (RFC 7239), or ""
// for an element without one. It splits quoted strings too: with an open quote, a client
// could otherwise hide what the proxy appends.
func forwardedFor(values []string) []string {
	chain := splitList(values)
	for i, element := range chain {
		chain[i] = ""
		for pair := range strings.SplitSeq(element, ";") {
			if name, value, _ := strings.Cut(pair, "="); strings.EqualFold(strings.TrimSpace(name), "for") {
				chain[i] = strings.Trim(strings.TrimSpace(value), `"`)
			}
		}
	}
	return chain
}
