package coupon

import (
	"context"

	"github.com/largesse/largesse/internal/reward"
)

// directBatchMax limits the requests of one transaction.
const directBatchMax = 100

// databaseRoute issues at once, with the database alone, during a Redis outage
// (PathDatabase).
type databaseRoute struct{ issues *batcher[Status] }

func newDatabaseRoute(issuer *DirectIssuer) *databaseRoute {
	return &databaseRoute{newBatcher(directBatchMax, callTimeout, issuer.IssueBatch)}
}

func (r *databaseRoute) request(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	status, err := r.issues.do(ctx, t.ID, user)
	if err != nil {
		return Status{}, err
	}
	return refuseDirect(t, status, "Redis is unavailable, and the places that are left are set aside for its waiting line; repeat the request later")
}

func (r *databaseRoute) wait() { r.issues.open.Wait() }
