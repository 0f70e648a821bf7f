package payout

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/store/postgres"
)

// TestNobodyPaysAlone is TestNobodyPaysAloneSQLite on PostgreSQL.
func TestNobodyPaysAlone(t *testing.T) {
	t.Parallel()
	address := os.Getenv("LARGESSE_TEST_POSTGRES")
	if address == "" {
		t.Fatal("LARGESSE_TEST_POSTGRES names no PostgreSQL server: run it by make test")
	}
	schema := fmt.Sprintf("largesse approvals %d %d", os.Getpid(), time.Now().UnixNano())
	rows, err := postgres.Open(t.Context(), postgres.Config{URL: address, Schema: schema, ApplicationName: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		rows.Close()
		db, err := pgx.Connect(context.Background(), address)
		if err == nil {
			_, err = db.Exec(context.Background(), "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
			_ = db.Close(context.Background())
		}
		if err != nil {
			t.Errorf("drop the test's schema: %v", err)
		}
	})
	if err := rows.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	walkApprovals(t, rows)
}
