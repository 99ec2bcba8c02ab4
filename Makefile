# `make` prints this help.
.DEFAULT_GOAL := help

GO ?= go
LINTER := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
BENCH ?= .

# An image of this name, for this machine's architecture unless ARCH says otherwise.
IMAGE ?= drainer
ARCH ?= $(shell $(GO) env GOARCH)
BASE ?= scratch
CHART := deploy/helm/drainer
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
CA_CERTIFICATES ?= $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem))

.PHONY: help build image chart-files demo test deploy-test lint bench generate

help: ## show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

build: ## build bin/drainer, static
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/drainer ./cmd/drainer

image: ## build the container image, from scratch
	@test -n "$(CA_CERTIFICATES)" || { echo 'no CA certificates found; say CA_CERTIFICATES=FILE' >&2; exit 1; }
	@mkdir -p bin/image
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) $(GO) build -trimpath \
	  -ldflags '-s -w -X github.com/agentoutbox/drainer/cmd/drainer/cli.version=$(VERSION)' -o bin/image/drainer ./cmd/drainer
	@cp $(CA_CERTIFICATES) bin/image/ca-certificates.crt
	docker build --platform linux/$(ARCH) --build-arg BASE=$(BASE) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) -t $(IMAGE) -f deploy/Containerfile bin/image

chart-files: ## copy dashboards and alert rules into the Helm chart
	@rm -f $(CHART)/files/dashboards/*.json $(CHART)/files/rules/*.yaml
	@for file in $(wildcard dashboards/*.json); do cp $$file $(CHART)/files/dashboards/; done
	@for file in $(wildcard dashboards/*.yaml); do if grep -q '^groups:' $$file; then cp $$file $(CHART)/files/rules/; fi; done

demo: build ## run the whole story on a throwaway Postgres, under a minute
	./bin/drainer demo

test: ## run every test, with the race detector, against a real Postgres
	$(GO) test -race -timeout 10m ./...

# Uncached: what these tests build they build through another process.
deploy-test: ## check the image, the Helm chart and the compose file
	cd deploy && $(GO) test -count 1 ./...
	cd deploy && $(GO) run $(LINTER) run

lint: ## check style and the import rules
	$(GO) run $(LINTER) run

bench: ## measure the drain against a real Postgres
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 1x ./integration

generate: ## write drainer.schema.json anew
	$(GO) generate ./...
