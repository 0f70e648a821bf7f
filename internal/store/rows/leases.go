package rows

import (
	"context"
	"slices"

	"github.com/largesse/largesse/internal/store"
)

const (
	// takeLease reads the clock again if the lease exists, because it may have waited for the row.
	takeLease = `INSERT INTO leases AS l (name, owner, until) VALUES ($1, $2, :clock + CAST($3 AS interval))
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = :clock + CAST($3 AS interval)
WHERE l.owner = excluded.owner OR l.until <= :clock RETURNING name`

	// leaseOwners returns the owners of the valid leases whose names begin with a
	// prefix. It scans the table, which has few rows at any time.
	leaseOwners = `SELECT DISTINCT owner FROM leases
WHERE substr(name, 1, length(CAST($1 AS text))) = CAST($1 AS text) AND until > :clock`
)

// LeaseTake takes a lease that is free, expired or already held by Owner. The
// lease then lasts for TTL from now. If another owner holds it, OK is false
// and the result names that owner. An Among that cannot begin a name is
// CodeInvalid.
func (t *Tables) LeaseTake(ctx context.Context, p store.LeaseTakeParams) (store.Lease, error) {
	if err := store.CheckText("prefix", p.Among); err != nil {
		return store.Lease{}, err
	}
	var l store.Lease
	err := t.db.Write(ctx, "take a lease", func() []Statement {
		l = store.Lease{}
		statements := []Statement{
			{SQL: takeLease, Args: []any{p.Name, p.Owner, p.TTL}, Row: seen(&l.OK)},
			{SQL: `SELECT owner, until FROM leases WHERE name = $1`, Args: []any{p.Name}, Row: func(scan Scan) error {
				return scan(&l.Owner, (*at)(&l.Until))
			}},
		}
		if p.Among != "" {
			statements = append(statements, Statement{SQL: leaseOwners, Args: []any{p.Among}, Row: into(&l.Holders, scanOne[string])})
		}
		return statements
	})
	if err != nil {
		return store.Lease{}, err
	}
	slices.Sort(l.Holders)
	return l, nil
}

// LeaseRelease releases the lease if owner holds it. Otherwise it does nothing.
func (t *Tables) LeaseRelease(ctx context.Context, name, owner string) error {
	return t.exec(ctx, "release a lease", `DELETE FROM leases WHERE name = $1 AND owner = $2`, name, owner)
}
