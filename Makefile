# Archkeeper. `make` or `make help` lists what there is.
#
# Needs Go 1.26, gcc, make, git, and network to the Go module proxy. Everything
# else that a target uses is built from a version pinned in this repository.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export GOTOOLCHAIN := local
export CGO_ENABLED ?= 0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X main.version=$(VERSION)
BIN := bin/archkeeper

gotestsum := $(CURDIR)/.cache/tools/gotestsum
golangci  := $(CURDIR)/.cache/tools/golangci-lint
benchstat := $(CURDIR)/.cache/tools/benchstat
results   := $(CURDIR)/.cache/test-results

FUZZTIME ?= 60s
COUNT ?= 1

##@ The main job

.PHONY: build
build: ## Build bin/archkeeper
	go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/archkeeper

.PHONY: run
run: build ## See it work: provider, images and a policy in one process; no cluster, no network
	$(BIN) demo

.PHONY: run-cluster
run-cluster: build ## The same on a real kube-apiserver and Gatekeeper, built on first use
	cd tests/e2e && go run ./cmd/runcluster

.PHONY: image
image: ## Build and push the image for four architectures, and look at what was pushed: make image REGISTRY=host/path (a throw-away registry without)
	go run ./deploy/image -version '$(VERSION)' -tag '$(subst +,_,$(VERSION))' $(if $(REGISTRY),-repository '$(REGISTRY)/archkeeper')

##@ Tests

.PHONY: test
test: ## Every test: unit, Rego, policies, oracles, and the real control plane
	@rm -rf $(results)
	@status=0; for suite in test-unit test-rego test-policy test-oracle test-chart e2e-harness e2e-together e2e-alone; do \
		$(MAKE) --no-print-directory $$suite || status=1; done; \
		$(MAKE) --no-print-directory test-count; exit $$status

# suite runs one go test command: $(1) its name, $(2) folder, $(3) arguments.
define suite
	@mkdir -p $(results)
	@echo "== $(1)"
	cd $(2) && $(gotestsum) --format pkgname-and-test-fails --hide-summary=skipped --jsonfile $(results)/$(1).json -- -count=$(COUNT) $(3)
endef

.PHONY: test-unit
test-unit: $(gotestsum) ## Unit tests of all packages, against local registries and servers
	$(call suite,unit,.,-parallel 8 $$(go list ./... | grep -v -E '/(rego|policies)(/|$$)'))

.PHONY: test-rego
test-rego: $(gotestsum) ## Rego: unit tests, strict check, format, coverage
	$(call suite,rego,.,./rego/... ./policies/...)

.PHONY: test-policy
test-policy: $(gotestsum) ## Policy suites through Gatekeeper's own client
	$(call suite,policy,tests/policy,./...)

.PHONY: test-oracle
test-oracle: $(gotestsum) ## Our mirror semantics against the container libraries
	$(call suite,oracle,tests/oracle,-tags containers_image_openpgp ./...)

.PHONY: test-chart
test-chart: $(gotestsum) ## The chart: lint, render, and its arguments against the program
	$(call suite,chart,tests/chart,./...)

# alone are the packages that bound times or memory: no other cluster runs beside
# theirs. Tests mostly wait, so more of them run at once than there are cores.
alone := /e2e/(crowd|placement|rate)$$

.PHONY: e2e
e2e: ## A real kube-apiserver, scheduler and Gatekeeper (built on first use)
	@status=0; for suite in e2e-harness e2e-together e2e-alone; do \
		$(MAKE) --no-print-directory $$suite || status=1; done; exit $$status

.PHONY: e2e-harness
e2e-harness: $(gotestsum)
	cd tests/controlplane && go run ./cmd/build
	$(call suite,controlplane,tests/controlplane,./...)

.PHONY: e2e-together
e2e-together: $(gotestsum)
	$(call suite,e2e,tests/e2e,-p 2 -parallel 6 -timeout 20m $$(go list ./... | grep -v -E '$(alone)'))

.PHONY: e2e-alone
e2e-alone: $(gotestsum)
	$(call suite,e2e-alone,tests/e2e,-p 1 -parallel 6 -timeout 40m $$(go list ./... | grep -E '$(alone)'))

.PHONY: test-race
test-race: ## Unit tests under the race detector
	CGO_ENABLED=1 go test -race ./provider/... ./controllers/... ./rego/...

.PHONY: test-count
test-count:
	@cat $(results)/*.json | awk '/"Test":/ && /"Action":"pass"/ {p++} /"Test":/ && /"Action":"fail"/ {f++} /"Test":/ && /"Action":"skip"/ {s++} \
		END {printf "%d passed, %d failed, %d skipped\n", p, f, s}'

.PHONY: bench
bench: ## Benchmarks, ours beside its peers; prints ratios
	go test -run '^$$' -bench Warm ./provider/server
	go test -run '^$$' -bench Restart -benchtime 20x ./provider/cache
	go test -run '^$$' -bench Admission ./controllers/admission
	cd tests/bench && go test -run '^$$' -bench . ./...
	cd tests/e2e && go test -run '^$$' -bench Drain -benchtime 3x ./rate

.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZTIME (60s) each
	@for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; done; done

##@ The house

.PHONY: lint
lint: $(golangci) ## golangci-lint with the repository's explicit list
	$(golangci) run ./...

.PHONY: lint-tests
lint-tests: $(golangci) ## The same list for the modules below tests/; slow before make test has built what they need
	@for module in tests/*/go.mod; do \
		echo "== $$module"; (cd $$(dirname $$module) && $(golangci) run -c $(CURDIR)/.golangci.yaml --build-tags containers_image_openpgp ./...); done

.PHONY: fmt
fmt: ## Format Go and Rego
	gofmt -w $$(git ls-files '*.go')
	go run ./policies/generate -fmt

.PHONY: generate
generate: ## Generate templates, CLI pages and tables from their sources
	go generate ./policies # first: the chart copies what it makes
	go generate ./...

.PHONY: verify
verify: generate ## Fail when generated files differ from what is committed, or formatting does
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	@git diff --exit-code --stat || { echo 'generated files are out of date: run make generate and commit'; exit 1; }
	@new=$$(git ls-files --others --exclude-standard -- docs policies deploy); \
		test -z "$$new" || { echo "$$new"; echo 'these files are not committed'; exit 1; }
	go vet ./...

.PHONY: new-policy
new-policy: ## Scaffold a constraint that passes its own tests: make new-policy NAME=my-rule
	go run ./policies/newpolicy $(NAME)

.PHONY: presubmit
presubmit: verify lint test lint-tests ## What to run before a change is sent

.PHONY: clean
clean: ## Remove what was built here (not Go's own caches)
	rm -rf bin .cache coverage.*

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(gotestsum): tools/test/go.mod
	@mkdir -p $(@D)
	cd tools/test && go build -o $@ gotest.tools/gotestsum

$(golangci): tools/lint/go.mod
	@mkdir -p $(@D)
	cd tools/lint && go build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(benchstat): tools/lint/go.mod
	@mkdir -p $(@D)
	cd tools/lint && go build -o $@ golang.org/x/perf/cmd/benchstat
