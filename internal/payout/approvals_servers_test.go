//go:build servers

package payout

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/store/postgres"
)

// TestNobodyPaysAlone is TestNobodyPaysAloneSQLite on PostgreSQL.
func TestNobodyPaysAlone(t *testing.T) {
	t.Parallel()
	address := os.Getenv("LARGESSE_TEST_POSTGRES")
	if address == "" {
		t.Fatal("LARGESSE_TEST_POSTGRES names no PostgreSQL server: run it by make test")
	}
	rows, err := postgres.Open(t.Context(), postgres.Config{
		URL: address, Schema: fmt.Sprintf("largesse approvals %d %d", os.Getpid(), time.Now().UnixNano()), ApplicationName: t.Name(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rows.Drop(context.Background()); err != nil {
			t.Error(err)
		}
		rows.Close()
	})
	if err := rows.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	walkApprovals(t, rows)
}
