.DEFAULT_GOAL := help
TOOL := go tool -modfile=tools/go.mod

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/largesse, without tables for debuggers as in a release
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/largesse ./cmd/largesse

.PHONY: test
test: ## Run every correctness suite, on real Redis, Valkey, PostgreSQL and Kafka, which it installs and starts (~5 min)
	@scripts/results
	@go run ./scripts/up -- scripts/test

.PHONY: test-fast
test-fast: ## Run the tests that need only Go (~2 min)
	go test -tags synctests -short -vet=off -p 3 -parallel 6 ./...

.PHONY: ci
ci: ## Run what a change must pass: all tests, the browser, clients, upgrades, the race detector, the linter (~25 min)
	@.ci/run

.PHONY: nightly
nightly: ## Run load, chaos, fuzzing and measurements and keep their results (~90 min): PART=product, packages, fuzz, soak or bench for one
	@scripts/nightly $(PART)

.PHONY: mutations
mutations: ## Break the product in twenty ways, and name the test that finds each
	@go run ./scripts/up -- go run ./scripts/mutations

.PHONY: bench-peers
bench-peers: build ## Compare Largesse with River, asynq, Watermill and a bare pipeline, measure sizes and coupons, and keep the figures (~40 min)
	@go -C bench build -trimpath -o ../bin/bench-peers .
	@scripts/record bench-peers go run ./scripts/up -- bin/bench-peers -largesse bin/largesse -keep docs/dev/results -page docs/benchmarks.md

.PHONY: profile
profile: ## Run bench payouts and coupons, and write profiles of process and database into bin/profile
	@go run ./scripts/up -- sh -c 'go run ./scripts/profile payouts && go run ./scripts/profile coupons'

.PHONY: servers
servers: ## Start the real servers, print their addresses and keep them up until Ctrl-C
	@go run ./scripts/up

.PHONY: lint
lint: ## Check the format, vet and lint with golangci-lint
	$(TOOL) golangci-lint run ./...
	$(TOOL) golangci-lint fmt --diff .

.PHONY: console
console: ## Build the web console (needs Node 20)
	@scripts/console

.PHONY: fmt
fmt: ## Format all Go files
	$(TOOL) gofumpt -w .

.PHONY: vuln
vuln: ## Look for known vulnerabilities in what is used (needs the network)
	go tool -modfile=tools/vuln/go.mod govulncheck ./...

.PHONY: sim-long
sim-long: ## See every state of both protocols, and take a million steps through the model of the coupon gate (~2 h, 16 GB)
	@scripts/record sim-long-payouts go test -tags nightly,synctests -count=1 -v -timeout 2h -run '^TestNightlyProtocolAtLength$$' ./internal/models/payout -full
	@scripts/record sim-long-coupons go test -tags nightly,synctests -count=1 -v -timeout 4h -run '^TestNightly(ProtocolAtLength|OpenRuns)$$' ./internal/models/coupon -full -each 20m
	@scripts/record sim-long go test -tags nightly,synctests -count=1 -v -timeout 30m -run '^TestNightlyModelAtLength$$' ./internal/coupon -rapid.checks=2000

.PHONY: release
release: ## Build the archives of a release in dist: VERSION=v1.2.3
	@test -n '$(VERSION)' || { echo 'name the version: make release VERSION=v1.2.3' >&2; exit 2; }
	@go run ./scripts/release -version '$(VERSION)'

.PHONY: clean
clean: ## Remove the built program and the cached servers and tools
	rm -rf bin dist .servers
