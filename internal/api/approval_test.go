package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// needsApproval makes a DRAFT of kim that is worth 5000, above the limit.
func needsApproval(t *testing.T) (b *bundle, path string) {
	t.Helper()
	b, _ = setupSQLite(t, 1000)
	path = "/v1/promotions/" + b.as(t, "kim", "POST", "/v1/promotions", `{"name":"x","type":"POINT"}`).text(t, "id")
	b.add(t, "kim", path, "1,2000\n2,3000\n")
	return b, path
}

// add uploads targets with their amounts.
func (b *bundle) add(t *testing.T, who, path, lines string) {
	t.Helper()
	b.upload(t, path+"/targets", "targetId,amount\n"+lines, ActorHeader, who, "Content-Type", "text/csv").want(t, http.StatusOK)
}

func TestApprovals(t *testing.T) {
	t.Parallel()

	t.Run("SayWhatTheyCover", func(t *testing.T) {
		t.Parallel()
		b, path := needsApproval(t)
		if p := b.as(t, "lee", "GET", path, "").object(t); p["awaitingApproval"] != true || p["approvedAmount"] != nil {
			t.Errorf("%v", p)
		}
		a := b.as(t, "lee", "POST", path+"/approve", "")
		a.want(t, http.StatusAccepted)
		if p := a.object(t); p["approvedBy"] != "lee" || p["approvedAmount"] != json.Number("5000") || p["approvedCount"] != json.Number("2") || p["awaitingApproval"] != false {
			t.Errorf("%v", p)
		}
		b.add(t, "kim", path, "3,4000\n")
		p := b.as(t, "lee", "GET", path, "").object(t)
		if p["awaitingApproval"] != true || p["approvedAmount"] != json.Number("5000") {
			t.Errorf("%v", p)
		}
		list := b.as(t, "lee", "GET", "/v1/promotions?awaitingApproval=true", "")
		if !strings.Contains(list.body, `"id":"`+path[len("/v1/promotions/"):]+`"`) {
			t.Errorf("%s", list.body)
		}
	})

	t.Run("AreNotGivenByAuthors", func(t *testing.T) {
		t.Parallel()
		b, path := needsApproval(t)
		b.add(t, "bob", path, "9,5\n")
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
		b, path := needsApproval(t)
		tag := b.as(t, "lee", "GET", path, "").header.Get("ETag")
		b.add(t, "kim", path, "3,1\n")
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
		tag = b.as(t, "lee", "GET", path, "").header.Get("ETag")
		b.add(t, "bob", path, "9,5\n")
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
		tag = b.as(t, "lee", "GET", path, "").header.Get("ETag")
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).want(t, http.StatusAccepted)
	})

	t.Run("CanBeRefused", func(t *testing.T) {
		t.Parallel()
		b, path := needsApproval(t)
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
		b.as(t, "lee", "POST", path+"/approve", "").want(t, http.StatusAccepted)
		b.as(t, "kim", "POST", path+"/cancel", "").want(t, http.StatusAccepted)
		b.as(t, "lee", "POST", path+"/approve", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
	})
}
