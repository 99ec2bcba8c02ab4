# `make` prints this help.
.DEFAULT_GOAL := help

GO ?= go
LINT_VERSION := v2.15.0
BENCH ?= .

.PHONY: help build demo test lint bench generate

help: ## show the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## build bin/drainer, static
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/drainer ./cmd/drainer

demo: build ## run the whole story on a throwaway Postgres, under a minute
	./bin/drainer demo

test: ## run every test, with the race detector, against a real Postgres
	$(GO) test -race -timeout 10m ./...

lint: ## check style and the import rules
	$(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION) run

bench: ## measure the drain against a real Postgres
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 1x ./integration

generate: ## write drainer.schema.json anew
	$(GO) generate ./...
