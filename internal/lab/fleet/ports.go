package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports to choose from. Linux takes those of outgoing connections from
// 32768 up: a client that dials a server that is away would sooner or later
// get the server's own port.
const (
	portMin = 16384
	portMax = 32767
)

// portTries bounds the search for a free port.
const portTries = 1000

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts finds n different loopback ports that nobody listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	var held []net.Listener
	var err error
	for try := 0; len(ports) < n && try < portTries; try++ {
		port := portMin + rand.IntN(portMax-portMin+1)
		l, listenErr := net.Listen("tcp", loopback(port)) //nolint:noctx // a loopback port is there at once
		if listenErr != nil {
			err = listenErr
			continue
		}
		ports, held = append(ports, port), append(held, l)
	}
	if len(ports) < n {
		err = fmt.Errorf("looking for %d free ports from %d to %d: %d found in %d tries: %w", n, portMin, portMax, len(ports), portTries, err)
	} else {
		err = nil
	}
	for _, l := range held {
		err = errors.Join(err, l.Close())
	}
	return ports, err
}
