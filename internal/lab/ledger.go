package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// Entry holds the provider's charges for one payout.
type Entry struct {
	Charges        int // number of charges; the books balance only if it is 1
	Amount         int64
	TransactionKey string
}

// Ledger holds the provider's charges by promotion ID and target ID.
type Ledger map[string]map[string]Entry

// ReadLedger reads the whole ledger of a moneysim at a base URL such as
// http://127.0.0.1:9000.
func ReadLedger(ctx context.Context, base string) (Ledger, error) {
	out := make(Ledger)
	cursor := ""
	for {
		var page struct {
			Charges []struct {
				PromotionID    string `json:"promotionId"`
				TargetID       string `json:"targetId"`
				Amount         int64  `json:"amount"`
				TransactionKey string `json:"transactionKey"`
			} `json:"charges"`
			NextCursor string `json:"nextCursor"`
		}
		query := url.Values{"limit": {"10000"}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		if err := getJSON(ctx, base+"/charges?"+query.Encode(), &page); err != nil {
			return nil, fmt.Errorf("read the provider's ledger: %w", err)
		}
		for _, c := range page.Charges {
			targets := out[c.PromotionID]
			if targets == nil {
				targets = make(map[string]Entry)
				out[c.PromotionID] = targets
			}
			e := targets[c.TargetID]
			e.Charges++
			e.Amount += c.Amount
			e.TransactionKey = c.TransactionKey
			targets[c.TargetID] = e
		}
		if page.NextCursor == "" {
			return out, nil
		}
		cursor = page.NextCursor
	}
}

func getJSON(ctx context.Context, address string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", address, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(into)
}
