package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The range of ports. Linux uses ports from 32768 for outgoing connections: a
// client that dials a stopped server would eventually get the server's own
// port.
const (
	portMin = 16384
	portMax = 32767
)

// portTries limits the search for a free port.
const portTries = 1000

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// FreePorts returns n different loopback ports on which nothing listens.
func FreePorts(n int) ([]int, error) {
	var ports []int
	var held []net.Listener
	var err error
	for try := 0; len(ports) < n && try < portTries; try++ {
		port := portMin + rand.IntN(portMax-portMin+1)
		l, listenErr := net.Listen("tcp", loopback(port)) //nolint:noctx // listening on loopback does not block
		if listenErr != nil {
			err = listenErr
			continue
		}
		ports, held = append(ports, port), append(held, l)
	}
	if len(ports) < n {
		err = fmt.Errorf("find %d free ports from %d to %d: found only %d in %d attempts: %w", n, portMin, portMax, len(ports), portTries, err)
	} else {
		err = nil
	}
	for _, l := range held {
		err = errors.Join(err, l.Close())
	}
	return ports, err
}
