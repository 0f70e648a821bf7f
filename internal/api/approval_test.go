package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// needsApproval makes a DRAFT of kim that is worth 5000, above the limit.
func (b *bundle) needsApproval(t *testing.T) (id reward.PromotionID, path string) {
	t.Helper()
	text := b.as(t, "kim", "POST", "/v1/promotions", `{"name":"x","type":"POINT"}`).text(t, "id")
	id = fixture.Must(reward.ParsePromotionID(text))(t)
	b.store.edit(id, func(v *store.PromotionView) {
		v.Counts.Payouts[reward.Ready], v.Counts.Amounts[reward.Ready] = 2, 5000
	})
	return id, "/v1/promotions/" + text
}

func TestApprovals(t *testing.T) {
	t.Parallel()

	t.Run("SayWhatTheyCover", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id, path := b.needsApproval(t)
		if p := b.as(t, "lee", "GET", path, "").object(t); p["awaitingApproval"] != true || p["approvedAmount"] != nil {
			t.Errorf("%v", p)
		}
		a := b.as(t, "lee", "POST", path+"/approve", "")
		a.want(t, http.StatusAccepted)
		if p := a.object(t); p["approvedBy"] != "lee" || p["approvedAmount"] != json.Number("5000") || p["approvedCount"] != json.Number("2") || p["awaitingApproval"] != false {
			t.Errorf("%v", p)
		}
		b.store.edit(id, func(v *store.PromotionView) { // more targets
			v.Counts.Payouts[reward.Ready], v.Counts.Amounts[reward.Ready] = 3, 9000
		})
		p := b.as(t, "lee", "GET", path, "").object(t)
		if p["awaitingApproval"] != true || p["approvedAmount"] != json.Number("5000") {
			t.Errorf("%v", p)
		}
		list := b.as(t, "lee", "GET", "/v1/promotions?awaitingApproval=true", "")
		if !strings.Contains(list.body, `"id":"`+id.String()+`"`) {
			t.Errorf("%s", list.body)
		}
	})

	t.Run("AreNotGivenByAuthors", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		_, path := b.needsApproval(t)
		b.do(t, "POST", path+"/targets", strings.NewReader("targetId,amount\n1,5\n"), ActorHeader, "bob", "Content-Type", "text/csv").want(t, http.StatusOK)
		b.as(t, "BOB", "POST", path+"/approve", "").wantProblem(t, http.StatusConflict, "SAME_PERSON")
		b.as(t, "kim", "POST", path+"/approve", "").wantProblem(t, http.StatusConflict, "SAME_PERSON")
		b.as(t, "lee", "POST", path+"/approve", "").want(t, http.StatusAccepted)
		list := b.as(t, "lee", "GET", path+"/uploads", "")
		list.want(t, http.StatusOK)
		if !strings.Contains(list.body, `"createdBy":"bob"`) || !strings.Contains(list.body, `"state":"COMPLETED"`) || !strings.Contains(list.body, `"bytes":20`) {
			t.Errorf("%s", list.body)
		}
		b.as(t, "lee", "GET", "/v1/promotions/9/uploads", "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	})

	t.Run("AreOfWhatWasSeen", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id, path := b.needsApproval(t)
		tag := b.as(t, "lee", "GET", path, "").header.Get("ETag")
		b.store.edit(id, func(v *store.PromotionView) { v.Counts.Amounts[reward.Ready]++ })
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
		tag = b.as(t, "lee", "GET", path, "").header.Get("ETag")
		b.do(t, "POST", path+"/targets", strings.NewReader("targetId,amount\n1,5\n"), ActorHeader, "bob", "Content-Type", "text/csv").want(t, http.StatusOK)
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
		tag = b.as(t, "lee", "GET", path, "").header.Get("ETag")
		b.store.edit(id, func(v *store.PromotionView) { v.PauseReason = "progress does not count" })
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).want(t, http.StatusAccepted)
	})

	t.Run("CanBeRefused", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		_, path := b.needsApproval(t)
		for _, reason := range []string{" ", `a\u001bb`, `a\u202eb`} {
			b.as(t, "lee", "POST", path+"/reject", `{"reason":"`+reason+`"}`).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		}
		a := b.as(t, "lee", "POST", path+"/reject", `{"reason":"too much"}`)
		a.want(t, http.StatusAccepted)
		if p := a.object(t); p["rejectedBy"] != "lee" || p["rejectReason"] != "too much" || p["status"] != "DRAFT" || p["awaitingApproval"] != false {
			t.Errorf("%v", p)
		}
		if p := b.as(t, "kim", "POST", path+"/start", "").wantProblem(t, http.StatusConflict, "APPROVAL_NEEDED"); !strings.Contains(p.Detail, "too much") {
			t.Errorf("%q", p.Detail)
		}
		b.as(t, "lee", "POST", path+"/approve", "").want(t, http.StatusAccepted)
		b.as(t, "kim", "POST", path+"/start", "").want(t, http.StatusAccepted)
	})
}
