package doctor

import (
	"net/http/httptest"
	"testing"

	"github.com/largesse/largesse/internal/config"
)

func TestNotify(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(nil)
	t.Cleanup(receiver.Close)
	cfg := config.Config{}
	onlyBut(t, lookAtNotify(t.Context(), cfg), CheckOK)
	cfg.Notify.SlackURL = receiver.URL
	onlyBut(t, lookAtNotify(t.Context(), cfg), CheckFail, "notify.slack") // private
	cfg.Webhook.AllowPrivate = true
	onlyBut(t, lookAtNotify(t.Context(), cfg), CheckOK, "notify.slack")
	cfg.Notify = config.Notify{SlackURL: "http://127.0.0.1:1", SMTPURL: "smtp://127.0.0.1:1", From: "rewards@shop.example"}
	onlyBut(t, lookAtNotify(t.Context(), cfg), CheckFail, "notify.slack", "notify.mail")
}
