package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/largesse/largesse/internal/reward"
)

// errRefusedAddress means that webhooks are not sent to an address.
var errRefusedAddress = errors.New("webhooks are not sent to this address")

var (
	errMetadata = fmt.Errorf("%w: clouds serve credentials at it or next to it", errRefusedAddress)
	errNobody   = fmt.Errorf("%w: it does not belong to one receiver", errRefusedAddress)
	errPrivate  = fmt.Errorf("%w: it is not public; set webhook.allow-private if the receiver is in your own network", errRefusedAddress)
)

// metadata contains addresses at which clouds serve credentials to their machines.
// Some of them are public. Link-local addresses are refused as a whole.
var metadata = []netip.Addr{
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192"),
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
}

// notPublic contains what the registries of special-purpose addresses exclude from
// the public networks, for IPv4, and within 2000::/3 for IPv6.
var notPublic = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
	"2001::/23", "2001:db8::/32", "3fff::/20",
)

var (
	publicIPv6 = netip.MustParsePrefix("2000::/3")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	compatible = netip.MustParsePrefix("::/96")
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		list[i] = netip.MustParsePrefix(t)
	}
	return list
}

// CheckAddress returns an error if webhooks must not be sent to an address. The
// addresses of a cloud's metadata are always refused. Others that are not public are
// refused unless allowPrivate is set.
func CheckAddress(ip netip.Addr, allowPrivate bool) error {
	ip = carried(ip.WithZone("").Unmap())
	switch {
	case ip.IsLinkLocalUnicast(), ip.IsLinkLocalMulticast(), slices.Contains(metadata, ip):
		return errMetadata
	case !ip.IsValid(), ip.IsUnspecified(), ip.IsMulticast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errNobody
	case allowPrivate:
		return nil
	case ip.Is6() && !publicIPv6.Contains(ip):
		return errPrivate
	case slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return errPrivate
	}
	return nil
}

// carried returns the IPv4 address to which an IPv6 address is translated, or ip
// itself.
func carried(ip netip.Addr) netip.Addr {
	b := ip.As16()
	switch {
	case !ip.Is6():
	case nat64.Contains(ip), compatible.Contains(ip) && b[12] != 0:
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixToFour.Contains(ip):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return ip
}

// control returns the function that checks each address right before it is dialled.
func control(allowPrivate bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("the address %s cannot be parsed: %w", reward.Quote(address), err)
		}
		return CheckAddress(at.Addr(), allowPrivate)
	}
}
