package main

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestPromotionSet(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{"PATCH /v1/promotions/7": {body: draftJSON}})
	for _, args := range [][]string{
		{"--rate", "200", "--weight", "none", "--max-amount", "900", "--max-retries", "0", "--name", "N", "--metadata", "a=b=c", "--metadata", "d"},
		{"--rate", "none", "--max-amount", "none", "--amount", "5", "--voucher", "V", "--currency", "EUR", "--canary-targets", "9", "--canary-max-failure-rate", "0", "--starts-at", "2099-01-01T00:00:00Z"},
		{"--amount", "none", "--voucher", "none", "--currency", "none", "--canary-targets", "none", "--starts-at", "none"},
	} {
		r := largesseRun(t.Context(), "", env, append([]string{"promotion", "set", "7"}, args...)...)
		if r != (result{exitDone, "promotion 7 is changed; show it with: largesse promotion show 7\n", ""}) {
			t.Errorf("%+v", r)
		}
	}
	want := []string{
		`PATCH /v1/promotions/7 {"name":"N","ratePerSecond":200,"weight":null,"maxAmount":900,"maxRetries":0,"metadata":{"a":"b=c","d":null}}`,
		`PATCH /v1/promotions/7 {"ratePerSecond":null,"maxAmount":null,"amount":5,"voucherCode":"V","currency":"EUR","canary":{"targets":9,"maxFailureRate":0},"startsAt":"2099-01-01T00:00:00Z"}`,
		`PATCH /v1/promotions/7 {"amount":null,"voucherCode":null,"currency":null,"canary":null,"startsAt":null}`,
	}
	fixture.Equal(t, want, asked())
	for _, args := range [][]string{
		nil,
		{"--rate", "x"},
		{"--rate", ""},
		{"--rate", "-5"},
		{"--weight", "0"},
		{"--max-retries", "21"},
		{"--max-retries", "none"},
		{"--name", ""},
		{"--metadata", "=x"},
		{"--canary-max-failure-rate", "0"},
		{"--starts-at", "tomorrow"},
		{"--max-amount", "1.5"},
	} {
		if r := largesseRun(t.Context(), "", nil, append([]string{"promotion", "set", "7"}, args...)...); r.code != exitWrongUse {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestPromotionDelete(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{"GET /v1/promotions/7": {body: draftJSON}, "DELETE /v1/promotions/7": {status: 204}})
	if r := largesseRun(t.Context(), "", env, "promotion", "delete", "7"); r.code != exitWrongUse || !strings.Contains(r.stderr, "delete Spring (7) with 2 targets permanently; add --yes") {
		t.Errorf("%+v", r)
	}
	if r := largesseRun(t.Context(), "", env, "promotion", "delete", "7", "--yes"); r != (result{exitDone, "promotion 7 is deleted\n", ""}) {
		t.Errorf("%+v", r)
	}
	fixture.Equal(t, []string{"GET /v1/promotions/7", "DELETE /v1/promotions/7"}, asked())
}

func TestPromotionMetadata(t *testing.T) {
	t.Parallel()
	withMetadata := strings.Replace(draftJSON, `"type"`, `"metadata":{"b":"2","a":"1\u001b"},"type"`, 1)
	env, asked := fakeServer(t, map[string]answer{"POST /v1/promotions": {201, draftJSON}, "GET /v1/promotions/7": {body: withMetadata}})
	if r := largesseRun(t.Context(), "", env, "promotion", "create", "--name", "S", "--type", "point", "--metadata", "team=growth", "--metadata", "x="); r.code != exitDone {
		t.Errorf("%+v", r)
	}
	if r := largesseRun(t.Context(), "", env, "promotion", "create", "--name", "S", "--type", "point", "--metadata", "team"); r.code != exitWrongUse {
		t.Errorf("%+v", r)
	}
	r := largesseRun(t.Context(), "", env, "promotion", "show", "7")
	if a, b := strings.Index(r.stdout, "metadata a  "), strings.Index(r.stdout, "metadata b  "); a < 0 || b < a || strings.Contains(r.stdout, "\x1b") {
		t.Errorf("%+v", r)
	}
	want := []string{`POST /v1/promotions {"name":"S","type":"POINT","metadata":{"team":"growth","x":""}}`, "GET /v1/promotions/7"}
	fixture.Equal(t, want, asked())
}

func TestPromotionListFilters(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{
		"GET /v1/promotions?createdAfter=2026-06-01T00%3A00%3A00Z&createdBy=kim&limit=200&q=summer&sort=-name&status=RUNNING": {body: `{"items":[]}`},
	})
	if r := largesseRun(t.Context(), "", env, "promotion", "list", "--status", "running", "--query", "summer", "--created-by", "kim",
		"--created-after", "2026-06-01T02:00:00+02:00", "--sort", "-name"); r.code != exitDone || len(asked()) != 1 {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"--sort", "amount"}, {"--created-before", "tomorrow"}, {"--status", "x"}} {
		if r := largesseRun(t.Context(), "", nil, append([]string{"promotion", "list"}, args...)...); r.code != exitWrongUse {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
