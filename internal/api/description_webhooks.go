package api

import (
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/webhook"
)

// webhookMessage is a kind of messages to webhook endpoints: those with the same data.
type webhookMessage struct {
	schema string // name of the schema
	data   reflect.Type
	// events are the events with this data, and when each happens.
	events map[string]string
}

var webhookMessages = []webhookMessage{
	{"PromotionMessage", reflect.TypeFor[webhook.PromotionData](), map[string]string{
		"promotion.started":         "A DRAFT becomes RUNNING",
		"promotion.paused":          "A promotion is paused; pauseReason says why",
		"promotion.completed":       "A promotion is COMPLETED; again if later targets reopened it",
		"promotion.cancelled":       "A promotion is CANCELLED",
		"promotion.approval_needed": "A promotion is paused until a second person approves it",
		"balance.breach":            "A promotion is paused because its books do not balance",
	}},
	{"PayoutMessage", reflect.TypeFor[webhook.PayoutData](), map[string]string{
		"payout.failed": "A payout becomes FAILED", "payout.unknown": "A payout becomes UNKNOWN",
	}},
	{"CouponMessage", reflect.TypeFor[webhook.CouponData](), map[string]string{
		"coupon.issued": "A coupon becomes ISSUED", "coupon.cancelled": "A coupon becomes CANCELLED", "coupon.used": "A coupon becomes USED",
	}},
	{"EndpointMessage", reflect.TypeFor[webhook.EndpointData](), map[string]string{store.WebhookTest: "Somebody tests an endpoint"}},
}

// describeWebhooks adds the messages that webhook endpoints receive to the description.
func describeWebhooks(doc *huma.OpenAPI) {
	schemas := doc.Components.Schemas
	doc.Webhooks = make(map[string]*huma.PathItem)
	for _, m := range webhookMessages {
		var names []any
		for _, event := range store.WebhookEvents {
			when, ok := m.events[event]
			if !ok {
				continue
			}
			names = append(names, event)
			doc.Webhooks[event] = &huma.PathItem{Post: &huma.Operation{
				Method: http.MethodPost, Summary: when,
				RequestBody: &huma.RequestBody{Content: map[string]*huma.MediaType{"application/json": {Schema: refTo(m.schema)}}},
			}}
		}
		schemas.Map()[m.schema] = &huma.Schema{
			Type: huma.TypeObject, Required: []string{"type", "timestamp", "data"},
			Properties: map[string]*huma.Schema{
				"type":      {Type: huma.TypeString, Enum: names},
				"timestamp": {Type: huma.TypeString, Format: "date-time", Description: "Time of the event"},
				"data":      schemas.Schema(m.data, true, ""),
			},
		}
	}
}
