package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

func TestWatch(t *testing.T) {
	broker := kgo.BrokerMetadata{Host: "127.0.0.1", Port: 9092}
	refused := errors.New("connection refused")
	closed := fmt.Errorf("unable to dial: %w", kgo.ErrClientClosed)
	canceled := fmt.Errorf("unable to dial: %w", context.Canceled)
	for name, tt := range map[string]struct {
		connects []error
		want     []string
	}{
		"one line per outage":                       {[]error{refused, refused, nil, nil}, []string{"unavailable", "available again"}},
		"a client that closes is no outage":         {[]error{closed, canceled}, nil},
		"a client that closes does not end one":     {[]error{refused, closed, refused}, []string{"unavailable"}},
		"a broker available from the start is fine": {[]error{nil, nil}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			log := fixture.Must(obs.NewLog(&out, "info", "text"))(t)
			w := newWatch(log)
			for _, err := range tt.connects {
				w.OnBrokerConnect(broker, 0, nil, err)
			}
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if out.Len() == 0 {
				lines = nil
			}
			if len(lines) != len(tt.want) {
				t.Fatalf("%d lines, want %d:\n%s", len(lines), len(tt.want), out.String())
			}
			for i, line := range lines {
				if !strings.Contains(line, `msg="Kafka broker `+tt.want[i]+`"`) {
					t.Errorf("line %d is %s, want Kafka broker %s", i, line, tt.want[i])
				}
			}
		})
	}
	t.Run("group sessions", func(t *testing.T) {
		var out strings.Builder
		log := fixture.Must(obs.NewLog(&out, "info", "text"))(t)
		w := newWatch(log)
		for _, err := range []error{closed, canceled, refused} {
			w.OnGroupManageError(err)
		}
		if strings.Count(out.String(), "consumer group session lost") != 1 {
			t.Errorf("want one line, of the refused connection:\n%s", out.String())
		}
	})
}
