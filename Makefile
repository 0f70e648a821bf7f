.DEFAULT_GOAL := help
LINT := go tool -modfile=tools/go.mod

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/largesse
	CGO_ENABLED=0 go build -trimpath -o bin/largesse ./cmd/largesse

.PHONY: test
test: ## Run every correctness suite on real Redis, Valkey, PostgreSQL and Kafka, which it installs and starts (~13 min)
	@go run ./scripts/testrun $(if $(AGAIN),-again)

.PHONY: test-long
test-long: ## Run the long suites: race detector on everything, models, fuzzing, load (~55 min)
	@go run ./scripts/testrun -long $(if $(MINUTES),-minutes $(MINUTES)) $(if $(SLOW),-slow $(SLOW)) $(if $(AGAIN),-again)

.PHONY: test-fast
test-fast: ## Run the tests that need only Go and no second process, without the race detector (~1 min)
	go test -short -p 4 -parallel 6 ./...

.PHONY: fuzz
fuzz: ## Let every fuzz function look for a finding, 5 s each
	@go run ./scripts/testrun -suite fuzz

.PHONY: openapi
openapi: ## Compare a running instance with its OpenAPI description
	@go run ./scripts/testrun -suite openapi

.PHONY: servers
servers: ## Start the real servers, print their addresses and keep them up until Ctrl-C
	@go run ./scripts/testrun -keep

.PHONY: lint
lint: ## Check the format, vet and lint with golangci-lint
	@go run ./scripts/testrun -suite lint

.PHONY: console
console: ## Build the web console (needs Node 20)
	@scripts/console

.PHONY: fmt
fmt: ## Format all Go files
	$(LINT) gofumpt -w .

.PHONY: vuln
vuln: ## Look for known vulnerabilities in what is used (needs the network)
	go tool -modfile=tools/vuln/go.mod govulncheck ./...

# The results of the next four are kept, with commit and date, in docs/dev/results.

.PHONY: bench
bench: ## Measure payouts and coupons on real servers: DATABASE_URL=postgres://… REDIS_URL=redis://… [KAFKA_BROKERS=…] (make servers starts some)
	@test -n '$(DATABASE_URL)' -a -n '$(REDIS_URL)' || \
		{ echo 'name the servers: make bench DATABASE_URL=postgres://… REDIS_URL=redis://… (make servers starts some)' >&2; exit 2; }
	@scripts/record bench-payouts go run ./cmd/largesse bench payouts --database-url '$(DATABASE_URL)' --redis-url '$(REDIS_URL)' --kafka-brokers '$(KAFKA_BROKERS)'
	@scripts/record bench-coupons go run ./cmd/largesse bench coupons --database-url '$(DATABASE_URL)' --redis-url '$(REDIS_URL)' --kafka-brokers '$(KAFKA_BROKERS)'
	@test -z '$(KAFKA_BROKERS)' || \
		scripts/record bench-originals go run ./cmd/largesse bench originals --database-url '$(DATABASE_URL)' --redis-url '$(REDIS_URL)' --kafka-brokers '$(KAFKA_BROKERS)'

.PHONY: chaos
chaos: ## Pay 200,000 targets, and issue coupons for a minute per mode, with every fault (~10 min)
	@LARGESSE_CHAOS_TARGETS=200000 LARGESSE_STORM=1m scripts/record chaos go run ./scripts/testrun -suite load -run '^(TestChaos|TestCouponStorm|TestEveryFaultAtOnce)$$' -v

.PHONY: soak
soak: build ## Run seeded fault runs for MINUTES (default 60) and check the books of each
	@scripts/record soak scripts/soak $(MINUTES)

.PHONY: sim-long
sim-long: ## Take a million steps through the model of gate, issuers and data loss, and see every state of both protocols (~2 h, 16 GB)
	@scripts/record sim-long-payouts go test -tags load -count=1 -v -timeout 2h -run '^TestProtocolAtLength$$' ./internal/models/payout -full
	@scripts/record sim-long-coupons go test -tags load -count=1 -v -timeout 4h -run '^(TestProtocolAtLength|TestOpenRuns)$$' ./internal/models/coupon -full -each 20m
	@scripts/record sim-long go test -tags load -count=1 -v -timeout 30m -run '^TestModelAtLength$$' ./internal/coupon -rapid.checks=2000

.PHONY: release
release: ## Build the archives of a release in dist: VERSION=v1.2.3
	@test -n '$(VERSION)' || { echo 'name the version: make release VERSION=v1.2.3' >&2; exit 2; }
	@go run ./scripts/release -version '$(VERSION)'

.PHONY: clean
clean: ## Remove the built program and the cached servers and tools
	rm -rf bin dist .servers
