package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

func scanView(found *sql.Rows) (v store.PromotionView, err error) {
	err = rows.ScanView(found.Scan, &v)
	return v, err
}

// detail reads one promotion with its details inside the transaction.
func (t *tx) detail(id reward.PromotionID) (store.PromotionView, error) {
	v, found, err := one(t.ctx, t, func(found *sql.Rows) (v store.PromotionView, err error) {
		err = rows.ScanDetails(found.Scan, &v)
		return v, err
	}, rows.PromotionSQL, int64(id))
	if err == nil && !found {
		err = store.NoPromotion(id)
	}
	return v, err
}

// view reads one promotion inside the transaction.
func (t *tx) view(id reward.PromotionID) (store.PromotionView, error) { return viewOf(t.ctx, t, id) }

// viewOf returns a promotion with its counts, or CodeNotFound.
func viewOf(ctx context.Context, q querier, id reward.PromotionID) (store.PromotionView, error) {
	v, found, err := one(ctx, q, scanView, rows.ViewSQL+`WHERE m.id = ?`, int64(id))
	if err == nil && !found {
		err = store.NoPromotion(id)
	}
	return v, err
}

// views reads the promotions of ids inside the transaction, each once.
func (t *tx) views(ids []store.PayoutID) (map[reward.PromotionID]store.PromotionView, error) {
	views := make(map[reward.PromotionID]store.PromotionView)
	for _, id := range ids {
		if _, ok := views[id.PromotionID]; ok {
			continue
		}
		v, err := t.view(id.PromotionID)
		if err != nil {
			return nil, err
		}
		views[id.PromotionID] = v
	}
	return views, nil
}

// putDetails stores the details of a promotion and its version.
func (t *tx) putDetails(p *reward.Promotion) error {
	return t.exec(`UPDATE promotions SET metadata = ?, search = ?, version = ? WHERE id = ?`,
		string(p.Metadata), reward.SearchText(p), p.Version, int64(p.ID))
}

// put stores every field of a promotion that can change, except those that
// recordDispatch and putDetails write.
func (t *tx) put(p *reward.Promotion) error {
	err := t.exec(`UPDATE promotions SET name = ?, status = ?, amount = ?, voucher_code = ?, currency = ?, max_retries = ?,
  consumers_per_instance = ?, rate_per_second = ?, weight = ?, max_amount = ?, canary_targets = ?, canary_max_failure_rate = ?,
  canary_judged = ?, starts_at = ?, webhook_url = ?, created_by = ?, approved_by = ?, registered = ?, expected_count = ?,
  closed = ?, paused_by = ?, pause_reason = ?, started_at = ?, finished_at = ?, stream_gone = ?,
  day_granted = ? WHERE id = ?`,
		p.Name, string(p.Status), int64(p.Amount), p.VoucherCode, p.Currency, p.MaxRetries,
		p.ConsumersPerInstance, p.RatePerSecond, p.Weight, int64(p.MaxAmount), p.Canary.Targets, p.Canary.MaxFailureRate,
		p.Canary.Judged, maybe(p.StartsAt), p.WebhookURL, p.CreatedBy, p.ApprovedBy, p.Registered, p.ExpectedCount,
		p.Closed, p.PausedBy, p.PauseReason, maybe(p.StartedAt), maybe(p.FinishedAt), p.StreamDestroyed, p.Approval.Granted, int64(p.ID))
	return err
}

// given returns the fields of p that the creator of a promotion sets.
func given(p reward.Promotion) reward.Promotion {
	return reward.Promotion{
		ID: p.ID, Name: p.Name, Type: p.Type, Amount: p.Amount, VoucherCode: p.VoucherCode, Currency: p.Currency,
		MaxRetries: p.MaxRetries, ConsumersPerInstance: p.ConsumersPerInstance, RatePerSecond: p.RatePerSecond,
		Weight: max(p.Weight, 1), MaxAmount: p.MaxAmount,
		Canary:   reward.Canary{Targets: p.Canary.Targets, MaxFailureRate: p.Canary.MaxFailureRate},
		StartsAt: instant(p.StartsAt), WebhookURL: p.WebhookURL, Metadata: p.Metadata, Version: 1, CreatedBy: p.CreatedBy,
	}
}

// insert inserts a DRAFT with its counts. It marks the stream as destroyed,
// because a DRAFT has none.
func (t *tx) insert(p *reward.Promotion) error {
	p.Status, p.StreamDestroyed, p.Revision = reward.Draft, true, store.FirstRevision(p.CreatedAt)
	if err := t.exec(`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries,
  consumers_per_instance, rate_per_second, weight, max_amount, canary_targets, canary_max_failure_rate, starts_at, webhook_url,
  created_by, registered, created_at, revision, stream_gone) VALUES (?, ?, ?, 'DRAFT', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)`,
		int64(p.ID), p.Name, string(p.Type), int64(p.Amount), p.VoucherCode, p.Currency, p.MaxRetries,
		p.ConsumersPerInstance, p.RatePerSecond, p.Weight, int64(p.MaxAmount), p.Canary.Targets, p.Canary.MaxFailureRate,
		maybe(p.StartsAt), p.WebhookURL, p.CreatedBy, p.Registered, micros(p.CreatedAt), p.Revision); err != nil {
		return err
	}
	err := t.exec(`INSERT INTO summaries (promotion_id, summary_id) VALUES (?, 0)`, int64(p.ID))
	return err
}

// PromotionCreate inserts a DRAFT or completes a registered promotion.
func (s *Store) PromotionCreate(ctx context.Context, p reward.Promotion) (reward.Promotion, error) {
	if err := store.CheckPromotion(p); err != nil {
		return reward.Promotion{}, err
	}
	var made reward.Promotion
	err := s.write(ctx, "create a promotion", func(tx *tx) error {
		v, err := tx.detail(p.ID)
		switch {
		case reward.HasCode(err, reward.CodeNotFound):
			made = given(p)
			made.CreatedAt = instant(p.CreatedAt)
			if err := tx.addAuthor(p.ID, p.CreatedBy); err != nil {
				return err
			}
			if err := tx.insert(&made); err != nil {
				return err
			}
			return tx.putDetails(&made)
		case err != nil:
			return err
		case v.Type != p.Type:
			return reward.NewError(reward.KindConflict, reward.CodeTypeMismatch, "promotion %d exists with type %s", p.ID, v.Type)
		case !v.Registered || v.Status != reward.Draft:
			return reward.NewError(reward.KindConflict, reward.CodeExists, "promotion %d exists", p.ID)
		}
		made = given(p)
		made.Status, made.CreatedAt, made.StreamDestroyed = v.Status, v.CreatedAt, v.StreamDestroyed
		made.ExpectedCount, made.Closed, made.Version = v.ExpectedCount, v.Closed, v.Version+1
		made.Approval.Round, made.Approval.Unvalued, made.Revision = v.Approval.Round, v.Approval.Unvalued, v.Revision+1
		if err := tx.addAuthor(p.ID, p.CreatedBy); err != nil {
			return err
		}
		if err := tx.putApproval(&made, `NULL`); err != nil {
			return err
		}
		if err := tx.put(&made); err != nil {
			return err
		}
		return tx.putDetails(&made)
	})
	if err != nil {
		return reward.Promotion{}, err
	}
	return made, nil
}

// PromotionRegister makes sure that the promotions named by Kafka exist.
func (s *Store) PromotionRegister(ctx context.Context, rs []store.Registration, approvalAbove reward.Limits, now time.Time) ([]reward.Promotion, error) {
	stand := make(map[reward.PromotionID]reward.Promotion)
	err := s.write(ctx, "register promotions", func(tx *tx) error {
		for _, r := range store.MergeRegistrations(rs) {
			v, err := tx.view(r.ID)
			p := v.Promotion
			if reward.HasCode(err, reward.CodeNotFound) {
				p = reward.Promotion{
					ID: r.ID, Type: r.Type, MaxRetries: reward.MaxRetries, Weight: 1, Version: 1, Registered: true, CreatedAt: instant(now),
				}
				err = tx.insert(&p)
			}
			if err != nil {
				return err
			}
			if p.Type == r.Type && r.Started {
				if p.Status == reward.Draft && p.RejectedBy == "" && !rules.StartsEarly(p, v.Counts, approvalAbove, now) {
					p.Status, p.StartedAt, p.StreamDestroyed = reward.Running, instant(now), false
					_, authored, err := one(tx.ctx, tx, scanInt, `SELECT 1 FROM promotion_authors WHERE promotion_id = ?`, int64(p.ID))
					if err != nil {
						return err
					}
					if authored {
						p = rules.NeedsGrants(p, true)
					}
				}
				if p.ExpectedCount == nil {
					p.ExpectedCount = r.ExpectedCount
				}
				if err := tx.put(&p); err != nil {
					return err
				}
			}
			stand[r.ID] = p
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	result := make([]reward.Promotion, len(rs))
	for i, r := range rs {
		result[i] = stand[r.ID]
	}
	return result, nil
}

const activeWhere = `(m.status = 'RUNNING' OR (m.status = 'CANCELLED' AND m.finished_at IS NULL) OR m.stream_gone = 0)`

// changesSQL reads the promotions whose latest change has a number above $1. One
// transaction writes at a time, so changes become visible in the order of their
// numbers.
const changesSQL = `SELECT c.number, m.id, ` + activeWhere + ` FROM changes c JOIN promotions m ON m.id = c.promotion_id
WHERE c.number > ? ORDER BY c.number`

// PromotionChanges returns what has changed in the list of active promotions. Its
// mark is the number of the latest change.
func (s *Store) PromotionChanges(ctx context.Context, since string) (store.PromotionChanges, error) {
	var c store.PromotionChanges
	err := s.snapshot(ctx, "read changed promotions", func(ctx context.Context, q querier) (err error) {
		if since == "" {
			c, err = wholeList(ctx, q)
		} else {
			c, err = changesSince(ctx, q, since)
		}
		return err
	})
	if err != nil {
		return store.PromotionChanges{}, err
	}
	return c, nil
}

func wholeList(ctx context.Context, q querier) (store.PromotionChanges, error) {
	mark, _, err := one(ctx, q, scanInt, `SELECT coalesce(max(number), 0) FROM changes`)
	if err != nil {
		return store.PromotionChanges{}, err
	}
	list, err := collect(ctx, q, scanView, dialect.ActiveSQL())
	return store.PromotionChanges{Whole: true, Active: list, Mark: strconv.FormatInt(mark, 10)}, err
}

func changesSince(ctx context.Context, q querier, since string) (store.PromotionChanges, error) {
	c := store.PromotionChanges{Mark: since}
	mark, err := strconv.ParseInt(since, 10, 64)
	if err != nil {
		return c, fmt.Errorf("the mark is not of this database: %w", err)
	}
	active := []reward.PromotionID{}
	if _, err := collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
		var id reward.PromotionID
		var isActive bool
		err := rows.Scan(&mark, (*int64)(&id), &isActive)
		if isActive {
			active = append(active, id)
		} else {
			c.Inactive = append(c.Inactive, id)
		}
		return struct{}{}, err
	}, changesSQL, mark); err != nil || len(active)+len(c.Inactive) == 0 {
		return c, err
	}
	c.Mark = strconv.FormatInt(mark, 10)
	c.Active, err = collect(ctx, q, scanView, dialect.ViewsOf(), bind([]any{active})...)
	return c, err
}

// PromotionMove changes the status of a promotion.
func (s *Store) PromotionMove(ctx context.Context, p store.PromotionMoveParams) (reward.Promotion, error) {
	return s.change(ctx, "change the status of a promotion", p.ID, func(tx *tx, m *reward.Promotion) error {
		if p.To == reward.Running {
			v, err := tx.view(p.ID)
			if err != nil {
				return err
			}
			if !rules.MayRun(v.Promotion, v.Counts, p.ApprovalAbove, p.Now) {
				return rules.NotAllowed(*m)
			}
		}
		next, err := rules.Move(*m, p.From, p.To, p.By, p.Reason, p.Now)
		if err != nil {
			return err
		}
		if p.To == reward.Running {
			next = rules.NeedsGrants(next, p.ApprovalPerDay.Of(next.Currency) > 0)
		}
		*m = next
		return tx.recordEvent(m, p.Event, p.Now)
	})
}

// PromotionChange changes the settings of a promotion.
func (s *Store) PromotionChange(ctx context.Context, c rules.PromotionChange) (store.PromotionView, error) {
	if err := store.CheckText("author", c.By); err != nil {
		return store.PromotionView{}, err
	}
	var v store.PromotionView
	err := s.write(ctx, "change a promotion", func(tx *tx) error {
		var err error
		if v, err = tx.detail(c.ID); err != nil {
			return err
		}
		var flagged int64
		if err := tx.QueryRowContext(tx.ctx, spentReady, int64(c.ID)).Scan(&flagged); err != nil {
			return err
		}
		if v.Promotion, err = c.Apply(v.Promotion, v.Counts, reward.Amount(flagged)); err != nil {
			return err
		}
		if err := store.CheckPromotion(v.Promotion); err != nil {
			return err
		}
		if err := tx.addAuthor(c.ID, c.By); err != nil {
			return err
		}
		if err := tx.putApproval(&v.Promotion, `approved_until`); err != nil {
			return err
		}
		if err := tx.put(&v.Promotion); err != nil {
			return err
		}
		return tx.putDetails(&v.Promotion)
	})
	if err != nil {
		return store.PromotionView{}, err
	}
	return v, nil
}

// PromotionClose records that no more targets will come.
func (s *Store) PromotionClose(ctx context.Context, id reward.PromotionID) (reward.Promotion, error) {
	return s.change(ctx, "close a promotion", id, func(_ *tx, m *reward.Promotion) error {
		m.Closed = true
		return nil
	})
}

// PromotionJudge ends the canary of a promotion.
func (s *Store) PromotionJudge(ctx context.Context, p store.PromotionJudgeParams) (reward.PromotionStatus, bool, error) {
	var status reward.PromotionStatus
	var judged bool
	err := s.write(ctx, "judge a canary", func(tx *tx) error {
		v, err := tx.view(p.ID)
		if err != nil {
			return err
		}
		status = v.Status
		if v.Promotion, judged = rules.Judge(v.Promotion, v.Counts, p.Reason); !judged {
			return nil
		}
		if v.Status == reward.Paused {
			if err := tx.recordEvent(&v.Promotion, p.Event, p.Now); err != nil {
				return err
			}
		}
		status = v.Status
		return tx.put(&v.Promotion)
	})
	if err != nil {
		return "", false, err
	}
	return status, judged, nil
}

// change runs fn on a promotion and stores the result. It returns the promotion
// afterwards. An error of fn rolls everything back.
func (s *Store) change(ctx context.Context, what string, id reward.PromotionID,
	fn func(*tx, *reward.Promotion) error,
) (reward.Promotion, error) {
	var changed reward.Promotion
	err := s.write(ctx, what, func(tx *tx) error {
		v, err := tx.view(id)
		if err != nil {
			return err
		}
		changed = v.Promotion
		if err := fn(tx, &changed); err != nil {
			return err
		}
		return tx.put(&changed)
	})
	if err != nil {
		return reward.Promotion{}, err
	}
	return changed, nil
}

// undecidedSQL finds an UNKNOWN payout for which rules.LookupDone is false. It
// names the index, because the planner would otherwise read all payouts of the
// promotion.
const undecidedSQL = `SELECT 1 FROM payouts INDEXED BY payouts_open
WHERE promotion_id = ? AND state = 3 AND state < 4 AND (looked_at IS NULL OR looked_at < settle_from + ?)
ORDER BY due_at, target_id LIMIT 1`

// PromotionComplete ends a promotion that has nothing left to do.
func (s *Store) PromotionComplete(ctx context.Context, id reward.PromotionID, settleAfter time.Duration, now time.Time) (bool, error) {
	var moved bool
	err := s.write(ctx, "complete a promotion", func(tx *tx) error {
		v, err := tx.view(id)
		if err != nil {
			return err
		}
		if _, ends := rules.Complete(v.Promotion, v.Counts, rules.Blockers{}, now); !ends {
			return nil // the counts alone prevent it
		}
		blockers, err := tx.blockers(&v.Promotion, settleAfter, now)
		if err != nil {
			return err
		}
		if v.Promotion, moved = rules.Complete(v.Promotion, v.Counts, blockers, now); !moved {
			return nil
		}
		if err := tx.recordEvent(&v.Promotion, store.EventFinished, now); err != nil {
			return err
		}
		return tx.put(&v.Promotion)
	})
	return moved && err == nil, err
}

// blockers reads what keeps a promotion from its end, in addition to its
// counts.
func (t *tx) blockers(p *reward.Promotion, settleAfter time.Duration, now time.Time) (b rules.Blockers, err error) {
	if p.Status == reward.PromotionCancelled {
		_, b.Lookups, err = one(t.ctx, t, scanInt, undecidedSQL, int64(p.ID), settleAfter.Microseconds())
		return b, err
	}
	_, b.Uploads, err = one(t.ctx, t, scanInt, `SELECT 1 FROM uploads
WHERE promotion_id = ? AND finished_at IS NULL AND leased_until > ? LIMIT 1`, int64(p.ID), micros(now))
	return b, err
}

// PromotionDelete removes a DRAFT and all its rows.
func (s *Store) PromotionDelete(ctx context.Context, id reward.PromotionID) error {
	return s.write(ctx, "delete a promotion", func(tx *tx) error {
		v, err := tx.view(id)
		if err != nil {
			return err
		}
		if v.Status != reward.Draft {
			return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
				"promotion %d is %s; only a DRAFT can be deleted", id, v.Status)
		}
		for _, query := range []string{
			`DELETE FROM attempts WHERE promotion_id = ?`,
			`DELETE FROM payouts WHERE promotion_id = ?`,
			`DELETE FROM promotions WHERE id = ?`,
		} {
			if err := tx.exec(query, int64(id)); err != nil {
				return err
			}
		}
		return nil
	})
}
