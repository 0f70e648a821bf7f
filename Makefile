.DEFAULT_GOAL := help
LINT := go tool -modfile=tools/go.mod

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/largesse
	CGO_ENABLED=0 go build -trimpath -o bin/largesse ./cmd/largesse

.PHONY: test
test: ## Run every suite over real Redis (also a Cluster), Valkey, PostgreSQL and Kafka, which it gets and starts
	@go run ./scripts/testrun

.PHONY: test-fast
test-fast: ## Run what needs nothing but Go and no second process, without the race detector
	go test -short -p 4 -parallel 6 ./...

.PHONY: fuzz
fuzz: ## Let every fuzz function look for a finding, 5 s each
	@go run ./scripts/testrun -suite fuzz

.PHONY: openapi
openapi: ## Hold a running instance against its own OpenAPI description
	@go run ./scripts/testrun -suite openapi

.PHONY: servers
servers: ## Start the real servers, print their addresses and hold them until Ctrl-C
	@go run ./scripts/testrun -keep

.PHONY: lint
lint: ## Check the format, vet and lint
	@go run ./scripts/testrun -suite lint

.PHONY: fmt
fmt: ## Format all Go files
	$(LINT) gofumpt -w .

.PHONY: vuln
vuln: ## Look for known vulnerabilities in what is used (needs the network)
	go tool -modfile=tools/vuln/go.mod govulncheck ./...

.PHONY: bench
bench: ## Measure payouts and coupons on real servers: DATABASE_URL=postgres://… REDIS_URL=redis://… [KAFKA_BROKERS=…] (make servers starts some)
	@test -n '$(DATABASE_URL)' -a -n '$(REDIS_URL)' || \
		{ echo 'say which servers: make bench DATABASE_URL=postgres://… REDIS_URL=redis://… (make servers starts some)' >&2; exit 2; }
	@go run ./cmd/largesse bench payouts --database-url '$(DATABASE_URL)' --redis-url '$(REDIS_URL)' --kafka-brokers '$(KAFKA_BROKERS)'
	@go run ./cmd/largesse bench coupons --database-url '$(DATABASE_URL)' --redis-url '$(REDIS_URL)' --kafka-brokers '$(KAFKA_BROKERS)'

.PHONY: chaos
chaos: ## Pay 200,000 targets while instances are killed and Redis and PostgreSQL lose what they have (~5 min)
	@LARGESSE_CHAOS_TARGETS=200000 go run ./scripts/testrun -suite load -run TestChaos -v

.PHONY: sim-long
sim-long: ## Take a million steps through the model of gate, issuers and losses (~5 min)
	go test -tags load -count=1 -timeout 30m -run '^TestModelAtLength$$' ./internal/coupon -rapid.checks=2000

.PHONY: clean
clean: ## Remove what was built, the cached servers and tools
	rm -rf bin .servers
