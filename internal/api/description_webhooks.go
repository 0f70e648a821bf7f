package api

import (
	"net/http"
	"reflect"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/webhook"
)

// webhookMessage is a kind of messages to webhook endpoints: those with the same data.
type webhookMessage struct {
	schema string // name of the schema
	data   reflect.Type
	events []string
	text   string // what the names of the events do not say
}

var webhookMessages = []webhookMessage{
	{
		"PromotionMessage", reflect.TypeFor[webhook.PromotionData](),
		[]string{
			"promotion.started", "promotion.paused", "promotion.completed", "promotion.cancelled", "promotion.approval_needed", "balance.breach",
		},
		"completed: again if targets reopened it; approval_needed: paused until another person approves; breach: paused, the books do not balance",
	},
	{"PayoutMessage", reflect.TypeFor[webhook.PayoutData](), []string{"payout.failed", "payout.unknown"}, ""},
	{"CouponMessage", reflect.TypeFor[webhook.CouponData](), []string{"coupon.issued", "coupon.cancelled", "coupon.used"}, ""},
	{
		"TemplateMessage", reflect.TypeFor[webhook.TemplateData](),
		[]string{"coupon.sold_out", "coupon.approval_needed"},
		"sold_out: again only with a larger quantity; approval_needed: a quantity waits for another person",
	},
	{"EndpointMessage", reflect.TypeFor[webhook.EndpointData](), []string{store.WebhookTest}, ""},
}

// describeWebhooks adds the messages that webhook endpoints receive to the description.
// Events with the same data share a path item.
func describeWebhooks(doc *huma.OpenAPI) {
	schemas := doc.Components.Schemas
	doc.Webhooks, doc.Components.PathItems = map[string]*huma.PathItem{}, map[string]*huma.PathItem{}
	for _, m := range webhookMessages {
		doc.Components.PathItems[m.schema] = &huma.PathItem{Post: &huma.Operation{
			Method: http.MethodPost, RequestBody: &huma.RequestBody{Content: map[string]*huma.MediaType{"application/json": {Schema: refTo(m.schema)}}},
		}}
		var names []any
		for _, event := range store.WebhookEvents {
			if slices.Contains(m.events, event) {
				names = append(names, event)
				doc.Webhooks[event] = &huma.PathItem{Ref: "#/components/pathItems/" + m.schema}
			}
		}
		schemas.Map()[m.schema] = &huma.Schema{
			Type: huma.TypeObject, Required: []string{"type", "timestamp", "data"},
			Properties: map[string]*huma.Schema{
				"type":      {Type: huma.TypeString, Enum: names, Description: m.text},
				"timestamp": {Type: huma.TypeString, Format: "date-time"},
				"data":      schemas.Schema(m.data, true, ""),
			},
		}
	}
}
