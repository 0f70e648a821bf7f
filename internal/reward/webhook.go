package reward

// PeopleEvents are the events of which people are told, in Slack or by e-mail.
var PeopleEvents = []string{
	"promotion.approval_needed", "promotion.paused", "promotion.completed", "balance.breach", "coupon.sold_out", "coupon.approval_needed",
}

// WebhookEvents are the events that a webhook endpoint can ask for. Their order is that
// of their numbers in the database, so none may be removed or moved.
var WebhookEvents = []string{
	"promotion.started", "promotion.paused", "promotion.completed", "promotion.cancelled", "promotion.approval_needed",
	"balance.breach", "payout.failed", "payout.unknown", "coupon.issued", "coupon.cancelled", "coupon.used",
	"coupon.sold_out", "coupon.approval_needed",
}
