package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

const printedByTool = `=================================== FAILURES ===================================
__________________________ GET /v1/promotions/{id} ___________________________
1. Test Case ID: 2iHest

- ST202 Schema-valid request rejected

[400] Bad Request:
________________________________ Stateful tests ________________________________
1. Test Case ID: du0j91
=================================== WARNINGS ===================================
__________________________________ not this ___________________________________
=================================== SUMMARY ====================================
`

func TestReadReport(t *testing.T) {
	t.Parallel()
	const good = `{"complete":true,"stop_reason":"completed","operations":{"total":2,"tested":2},"errors":[],"warnings":{"missing_auth":[]},
		"valid_rates":{"GET /a":{"coverage":{"accepted":0},"fuzzing":{"accepted":3}},"GET /v1/promotions/{id}":{"coverage":{"accepted":1}}}}`
	exit1 := errors.New("exit status 1")
	for name, tt := range map[string]struct {
		report string
		output string
		err    error
		passed int
		failed []string
	}{
		"AllIsWell":              {good, "", nil, 2, nil},
		"AnOperationFails":       {good, printedByTool, exit1, 1, []string{"GET /v1/promotions/{id}", "Stateful tests"}},
		"ItFailsWithoutAFinding": {good, "", exit1, 2, []string{"schemathesis"}},
		"ItFindsAndEndsWell":     {good, printedByTool, nil, 1, []string{"GET /v1/promotions/{id}", "Stateful tests", "schemathesis"}},
		"NotToItsEnd":            {strings.Replace(good, `"complete":true`, `"complete":false`, 1), "", nil, 2, []string{"schemathesis"}},
		"NotAllOperations":       {strings.Replace(good, `"tested":2`, `"tested":1`, 1), "", nil, 2, []string{"schemathesis"}},
		"NothingWasAccepted":     {strings.Replace(good, `"accepted":3`, `"accepted":0`, 1), "", nil, 1, []string{"GET /a"}},
		"AWarning":               {strings.Replace(good, `"missing_auth":[]`, `"missing_auth":["GET /a"]`, 1), "", nil, 2, []string{"warning missing_auth"}},
		"NoReport":               {"{", "", nil, 0, []string{"report of schemathesis"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := newResult("openapi", nil)
			readReport(res, []byte(tt.report), strings.Split(tt.output, "\n"), tt.err)
			if res.passed != tt.passed || !slices.Equal(names(res), tt.failed) {
				t.Errorf("%d passed, failed %v, want %d and %v", res.passed, names(res), tt.passed, tt.failed)
			}
		})
	}
	if sections := failedSections(strings.Split(printedByTool, "\n")); len(sections) != 2 || !strings.Contains(sections[0].output, "ST202") {
		t.Errorf("%+v", sections)
	}
}

func TestSeedingRepeatsWhatTheInstanceIsNotReadyFor(t *testing.T) {
	t.Parallel()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	s := &seeding{ctx: t.Context(), in: &instance{server: server.URL}}
	s.post("/v1/coupons/45/issue", "{}")
	if s.err != nil || asked != 3 {
		t.Errorf("%d requests, then %v, want 3 and no error", asked, s.err)
	}
}
