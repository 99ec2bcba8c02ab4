# `make` prints this help.
.DEFAULT_GOAL := help

GO ?= go
# Dependabot does not see the versions of these tools: raise them by hand.
GOTESTSUM := $(GO) run gotest.tools/gotestsum@v1.13.0
GORELEASER := $(GO) run github.com/goreleaser/goreleaser/v2@v2.15.1
SBOM := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
HELM_DOCS := github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2 --chart-search-root deploy/helm --sort-values-order file
LINTER := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
BENCH ?= .
FUZZTIME ?= 10s
SOAK ?= 1h

# Whose coverage counts, and whose tests are run for it.
COVERED := ./drainer/...,./dispatch/...,./compensations/...
COVERING ?= ./drainer/... ./dispatch/... ./compensations/... ./cmd/... ./integration
COVERAGE := $(CURDIR)/bin/coverage

# An image of this name, for this machine's architecture unless ARCH says otherwise.
IMAGE ?= drainer
ARCH ?= $(shell $(GO) env GOARCH)
BASE ?= scratch
CHART := deploy/helm/drainer
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
REVISION := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
DATE := $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
STAMP := $(foreach name,VERSION REVISION DATE,-X github.com/agentoutbox/drainer/cmd/drainer/cli.$(shell echo $(name) | tr A-Z a-z)=$($(name)))
TAG := $(shell git describe --exact-match --tags --match 'v*' 2>/dev/null)
CA_CERTIFICATES ?= $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem))

.PHONY: help build image chart-files demo test test-short models faults figures fuzz soak cover deploy-test cluster-test lint bench screenshots generate \
  clients-build clients-test clients-live clients-trixie \
  dist dist-test freeze frozen release-dry-run

help: ## show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

build: ## build bin/drainer, static
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(STAMP)' -o bin/drainer ./cmd/drainer

image: ## build the container image, from scratch
	@test -n "$(CA_CERTIFICATES)" || { echo 'no CA certificates found; say CA_CERTIFICATES=FILE' >&2; exit 1; }
	@mkdir -p bin/image
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) $(GO) build -trimpath \
	  -ldflags '-s -w $(STAMP)' -o bin/image/drainer ./cmd/drainer
	@cp $(CA_CERTIFICATES) bin/image/ca-certificates.crt
	docker build --platform linux/$(ARCH) --build-arg BASE=$(BASE) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$(REVISION) -t $(IMAGE) -f deploy/Containerfile bin/image

chart-files: ## copy dashboards and alert rules into the Helm chart, and list its values in its README
	@rm -f $(CHART)/files/dashboards/*.json $(CHART)/files/rules/*.yaml
	@for file in $(wildcard dashboards/*.json); do cp $$file $(CHART)/files/dashboards/; done
	@for file in $(wildcard dashboards/*.yaml); do if grep -q '^groups:' $$file; then cp $$file $(CHART)/files/rules/; fi; done
	$(GO) run $(HELM_DOCS)

demo: build ## run the whole story on a throwaway Postgres, under a minute
	./bin/drainer demo

test: ## run every test but those of the clients, most with the race detector, against a real Postgres; tell at the end what was skipped, and why
	GO=$(GO) $(GOTESTSUM) --format standard-quiet --raw-command -- .ci/tests

test-short: ## the tests outside integration/ and clients/ that are quick, without the race detector
	$(GOTESTSUM) --format standard-quiet -- -vet=off -ldflags='-s -w' -p 3 -short $$($(GO) list ./... | grep -v -e /integration -e /clients)

faults: ## break everything once and print a table; CASE=7 alone, MUTANT=fence_removed without that guard
	DRAINER_MUTANT=$(MUTANT) $(GO) run ./integration/fault/report $(if $(CASE),-case $(CASE))

# A figure names the commit that it was measured on, as "on commit 1234567".
figures: ## say which figures of the documents are older than the code
	@for commit in $$(grep -ohE 'on commit [0-9a-f]{7,}' docs/proof.md docs/benchmarks.md | cut -d' ' -f3 | sort -u); do \
	  git cat-file -e "$$commit^{commit}" 2>/dev/null || { echo "$$commit  not in this history"; continue; }; \
	  files=$$(git diff --name-only $$commit HEAD -- . ':!docs' ':!*.md' | wc -l) || exit 1; \
	  pages=$$(grep -lE "on commit $$commit" docs/proof.md docs/benchmarks.md | tr '\n' ' '); \
	  if [ $$files -eq 0 ]; then echo "$$commit  current  $$pages"; \
	  else echo "$$commit  older    $$pages ($$files files have changed that are no documents)"; fi; \
	done

soak: ## break whatever can break for an hour (SOAK=10m: ten minutes), and look for leaks
	SOAK=$(SOAK) $(GO) test -count 1 -timeout 0 -v -run Hour ./integration/nemesis

# Daemons in processes of their own report to the same folder as the tests.
cover: ## list the code of engine, adapters and sagas that no test runs
	@rm -rf $(COVERAGE) && mkdir -p $(COVERAGE)
	$(GO) test -timeout 20m -covermode atomic -coverpkg $(COVERED) -exec 'env GOCOVERDIR=$(COVERAGE)' \
	  $(COVERING) -args -test.gocoverdir=$(COVERAGE)
	$(GO) tool covdata textfmt -i $(COVERAGE) -o $(COVERAGE)/profile
	@$(GO) run ./internal/uncovered $(COVERAGE)/profile

fuzz: ## run every fuzz target for FUZZTIME
	@GO=$(GO) .ci/fuzz $(FUZZTIME)

clients-build: ## build the package for TypeScript, clients/typescript/dist; needs Node, and tsc or TSC=FILE
	cd clients/typescript && node build.mjs $(TSC)

clients-test: ## test the packages for Python, TypeScript and Go; what is not installed is skipped, or fails with CLIENTS_STRICT=1
	$(GO) test -count 1 -timeout 30m -v ./clients/...
	cd producer && $(GO) test -count 1 ./...
	cd producer/tests && $(GO) test -count 1 -timeout 30m ./...

clients-live: ## test with the frameworks and database clients that $PYTHON and $NODE_PATH have; say which they have not
	CLIENTS_LIVE=1 $(GO) test -count 1 -v -run 'TestThePythonPackage|TestTheTypeScriptPackage$$' ./clients

clients-trixie: ## test the package for Python with the drivers of Debian trixie; needs root
	PYTHON="$$(.ci/trixie-python.sh)" $(GO) test -count 1 -v -run Python ./clients

models: ## try every order of events in the models; show how each guard is missed
	@mkdir -p bin
	@$(GO) test -count 1 -v -run 'TestNoOrderOfEvents|TestLostCommits|TestEachGuard|TestOneOfTwo' ./model/row ./model/saga ./model/share >bin/models.log || { cat bin/models.log; exit 1; }
	@grep -Ev '^ *(===|---) ' bin/models.log

# Uncached: what these tests build they build through another process.
deploy-test: ## check the image, the Helm chart, the compose file and a login at an OpenID Connect issuer
	$(GO) run $(HELM_DOCS) --dry-run | diff -u $(CHART)/README.md - || { echo 'run make chart-files' >&2; exit 1; }
	cd integration/oidc && $(GOTESTSUM) --format standard-quiet -- -count 1 -timeout 30m ./...
	cd deploy && $(GOTESTSUM) --format standard-quiet -- -count 1 -timeout 30m ./...
	cd deploy && $(GO) run $(LINTER) run
	cd deploy/cluster && $(GO) run $(LINTER) run

cluster-test: ## install and break the chart in a Kubernetes on this machine; CLUSTER=1 builds Kubernetes first
	cd deploy/cluster && $(GO) test -count 1 -v -timeout 90m .

# A build between releases is older than any release, and newer than the builds before it.
UNRELEASED = 0.0.0-dev.$(shell echo $(DATE) | tr -dc 0-9).g$(shell git describe --always --dirty --exclude '*')

dist: $(if $(TAG),frozen) ## build archives, .deb, .rpm, image, chart, SBOMs and checksums into dist/, for Linux and macOS
	GOBIN="$(CURDIR)/bin/tools" CGO_ENABLED=0 $(GO) install -trimpath $(SBOM)
	VERSION=$(or $(TAG:v%=%),$(UNRELEASED)) REVISION=$(REVISION) DATE=$(DATE) SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	  $(GORELEASER) release --snapshot --clean
	@test -n "$(CA_CERTIFICATES)" || { echo 'no CA certificates found; say CA_CERTIFICATES=FILE' >&2; exit 1; }
	cd deploy && $(GO) run ./ociimage -version $(or $(TAG:v%=%),$(UNRELEASED)) -revision $(REVISION) -created $(DATE) -certificates $(CA_CERTIFICATES)

frozen: freeze
	@test -z "$$(git status --porcelain)" || { echo '$(TAG) is not what lies here: commit, and move the tag' >&2; exit 1; }

# Its result belongs into the commit that is tagged.
freeze: ## before a release: write the checksums of the migrations, which do not change from then on
	cd migrations/sql && if [ -s ../frozen.sha256 ]; then sha256sum --check --quiet ../frozen.sha256; fi
	cd migrations/sql && sha256sum *.sql >../frozen.sha256

dist-test: dist ## build dist/ again and compare, install the .deb in a container, and drain there
	cd deploy && DIST="$(CURDIR)/dist" $(GOTESTSUM) --format standard-verbose -- -count 1 -timeout 60m -run Dist .

# Each of the two runs in its order, whatever -j says.
release-dry-run: ## what a release does before it publishes: every test, then dist and its tests
	$(MAKE) -j1 lint test clients-test deploy-test
	$(MAKE) dist-test

lint: ## check style, the import rules and the words of texts
	$(GO) run $(LINTER) run
	$(GO) run ./internal/plainwords

bench: ## measure every goal of docs/benchmarks.md, about two hours
	@{ $(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 1x -timeout 4h ./integration/bench && \
	  $(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 5x ./clients && \
	  cd producer/tests && $(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 5x .; } | tee /dev/stderr | \
	  $(GO) run ./integration/bench/goals -bench '$(BENCH)'

screenshots: ## take the documentation's pictures of the console again
	$(GO) test -count 1 -run Pictures ./integration/console -args -update

generate: ## write drainer.schema.json and docs/errors.md again
	$(GO) generate ./...
