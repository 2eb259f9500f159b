# Commands of the project; `make` alone lists them. A fresh Debian or Ubuntu
# machine with Go and root needs nothing else typed.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CHART    := charts/zarf-registry
VERSION  ?= $(shell sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}/\1/p' $(CHART)/Chart.yaml)
REGISTRY ?= ghcr.io/zarf-dev/zarf-registry
LDFLAGS  := -s -w -X github.com/zarf-dev/zarf-registry/internal/version.Version=$(VERSION)
GOBUILD  := CGO_ENABLED=0 go build -trimpath -ldflags "$(LDFLAGS)"

# The test cluster; see test/cluster/README.md.
NAME       ?= zarf-registry
NODES      ?= 2
IP_FAMILY  ?= IPv4
KUBE_PROXY ?= iptables
TESTCLUSTER := bin/testcluster

# The controllers of cert-manager; see test/certmanager/README.md. Vet, test and build
# compile it in one way, because its dependencies take minutes.
CERTMANAGER    := bin/testcertmanager
CERTMANAGER_GO := cd test/certmanager && CGO_ENABLED=0 go

# How long each fuzz target runs, and which: a regular expression.
FUZZ_TIME ?= 1m
FUZZ_RUN  ?=

# Where tests and demo find what was built.
export E2E_TESTCLUSTER := $(CURDIR)/$(TESTCLUSTER)
export E2E_CERTMANAGER := $(CURDIR)/$(CERTMANAGER)
export E2E_INIT_HOOK   := $(CURDIR)/bin/init-hook
export E2E_IMAGES      := $(CURDIR)/dist/images
export E2E_CHART       := $(CURDIR)/$(CHART)

# The table of values in the chart's README, in the order of values.yaml.
HELM_DOCS = "$$($(TESTCLUSTER) tool helm-docs)" --chart-search-root charts --sort-values-order file --log-level error

##@ Everyday
.PHONY: help
help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build images $(TESTCLUSTER) ## Boot a cluster (or use KUBECONFIG), install, push, run a pod from the registry
	test/demo.sh

.PHONY: test
test: verify lint alerts unit fuzz e2e soak ## All checks that this machine can run; says loudly what it skipped

##@ Build
.PHONY: deps
deps: ## Install the Debian packages that building and testing need (root; does nothing when they are there)
	@hack/deps.sh

.PHONY: payload
payload: deps ## Build the programs that init-hook carries to the nodes
	go run ./tools/payload --version $(VERSION)

.PHONY: build
build: payload ## Build init-hook, registry and registry-node for this machine into bin/
	$(GOBUILD) -o bin/ ./cmd/...

.PHONY: images
images: payload ## Build dist/images/*.tar: OCI archives, amd64 and arm64, reproducible
	go run ./tools/images --version $(VERSION) --registry $(REGISTRY) --output dist/images

.PHONY: chart
chart: ## Package the chart into dist/, reproducible
	go run ./tools/release -chart-only -version $(VERSION) -output dist

.PHONY: release
release: images ## Everything of a release into dist/release: chart, programs, images, SBOMs, provenance, SHA256SUMS; docs/release.md
	go run ./tools/release -version $(VERSION) -registry $(REGISTRY) -output dist/release $(RELEASE_FLAGS)
	cd dist/release && sha256sum --check --quiet SHA256SUMS

##@ Check
.PHONY: unit
unit: payload ## Unit tests with the race detector, where there is Go to race: not the templates, the loader in C, cert-manager
	go test -race -short ./cmd/... ./internal/... ./tools/... ./test/e2e/soak # -short: killed at a few writes, no 2 GiB; the next line: all of it
	go test -timeout 30m ./bench/... ./internal/hook ./internal/images ./internal/remote ./templates-tests/... ./loader/... ./docs/...
	cd test/cluster && go test -race ./...
	$(CERTMANAGER_GO) test -trimpath ./...

.PHONY: fuzz
fuzz: payload ## Every fuzz target for a minute, two at a time (FUZZ_TIME=10m FUZZ_RUN=FuzzMask for one, longer)
	go run ./tools/fuzz -time $(FUZZ_TIME) -run '$(FUZZ_RUN)'

.PHONY: fuzz-corpus
fuzz-corpus: payload ## Add to the committed corpora what make fuzz has found here and nothing in them reaches (FUZZ_RUN=FuzzMask for one)
	go run ./tools/fuzz -corpus -run '$(FUZZ_RUN)'

.PHONY: lint
lint: payload $(TESTCLUSTER) ## gofmt, go vet, golangci-lint, helm lint, ct lint, kubeconform
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not gofmt'ed:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	cd test/cluster && go vet ./...
	$(CERTMANAGER_GO) vet -trimpath ./...
	"$$($(TESTCLUSTER) tool golangci-lint)" run ./...
	"$$($(TESTCLUSTER) tool helm)" lint --strict $(CHART) --set registryProxy=true
	$(MAKE) --no-print-directory ct-lint kubeconform

.PHONY: ct-lint
ct-lint: $(TESTCLUSTER) ## ct lint of the chart: yamllint and helm lint with every values file of ci/
	@# Whether the version was raised is asked where there is a main branch to compare with.
	PATH="$$(dirname "$$($(TESTCLUSTER) tool helm)"):$$PATH" "$$($(TESTCLUSTER) tool ct)" lint --config ct.yaml --charts $(CHART) --check-version-increment=false

.PHONY: kubeconform
kubeconform: $(TESTCLUSTER) ## What the chart renders against the schemas of three minors of Kubernetes
	hack/kubeconform.sh $(TESTCLUSTER) $(CHART)

.PHONY: ct-install
ct-install: ## ct install of every values file of the chart's ci/, on a cluster of its own (part of make e2e)
	$(MAKE) --no-print-directory e2e E2E_RUN=TestChartTesting

.PHONY: alerts
alerts: $(TESTCLUSTER) ## The chart's alerts and dashboard with promtool, on captured metrics
	PROMTOOL="$$($(TESTCLUSTER) tool promtool)" go test ./templates-tests -run Promtool -count=1

.PHONY: generate
generate: $(TESTCLUSTER) ## Write what is generated: go.mod, golden manifests, the chart's schema and README
	go mod tidy
	cd test/cluster && go mod tidy
	cd test/certmanager && go mod tidy
	go test ./templates-tests -run Schema -write-schema
	$(HELM_DOCS)
	go test ./templates-tests/... -update
	go test ./cmd/registry-node/root -run Configure -update
	go test ./internal/noderuntime -run Example -update

.PHONY: verify
verify: $(TESTCLUSTER) ## Fail where generated files are not what generate would write
	go mod tidy -diff
	cd test/cluster && go mod tidy -diff
	cd test/certmanager && go mod tidy -diff
	go test ./templates-tests -run 'Schema|README'
	$(HELM_DOCS) --dry-run | diff -u $(CHART)/README.md -

.PHONY: e2e
e2e: build images $(TESTCLUSTER) $(CERTMANAGER) ## Scenarios on the test cluster, or on the one in KUBECONFIG (E2E_RUN=TestSwitch for one)
	@for tool in crane ct helm helm4 kubectl; do $(TESTCLUSTER) tool $$tool >/dev/null; done # built before clusters need the processors
	@mkdir -p dist # The whole log is in dist/e2e.json; what failed and what was skipped is repeated at the end.
	"$$($(TESTCLUSTER) tool gotestsum)" --format testname --jsonfile dist/e2e.json -- ./test/e2e -count=1 -timeout 60m $(if $(E2E_RUN),-run '$(E2E_RUN)',-skip '^TestSoak$$')
	@sed -n 's/.*"Test":"\([^"]*\)".*\(figure: .*\|SHORTENED: .*\)\\n".*/\1: \2/p' dist/e2e.json | sort

.PHONY: e2e-long
e2e-long: export E2E_LONG = 1
e2e-long: e2e ## The same with what make e2e shortens: a switch killed at all of its points

# How long faults are inflicted, and the number that their sequence comes from (empty: any).
SOAK_TIME ?= 5m
SOAK_SEED ?=
.PHONY: soak
soak: export SOAK_TIME := $(SOAK_TIME)
soak: export SOAK_SEED := $(SOAK_SEED)
soak: build images $(TESTCLUSTER) ## Faults in random order on a test cluster that pulls and pushes (SOAK_TIME=1h SOAK_SEED=42); docs/soak.md
	@for tool in helm kubectl; do $(TESTCLUSTER) tool $$tool >/dev/null; done
	@# Alone, because it measures recovery. -timeout: go test's own limit, which the faults' time is well below.
	go test ./test/e2e -run '^TestSoak$$' -count=1 -v -timeout 24h

.PHONY: bench
bench: ## All benchmarks with targets, and the page of them, bench/RESULTS.md (BENCH_FLAGS="-n 1")
	$(MAKE) --no-print-directory bench-proxy
	$(MAKE) --no-print-directory bench-registry
	$(MAKE) --no-print-directory bench-bootstrap
	$(MAKE) --no-print-directory bench-scale
	go run ./bench/report bench

.PHONY: bench-proxy
bench-proxy: payload $(TESTCLUSTER) ## The proxy beside socat, stunnel, haproxy, nginx, ghostunnel and a naive one (BENCH_FLAGS="-n 1")
	@hack/deps.sh bench
	$(GOBUILD) -o dist/bench-proxy ./bench/proxy
	dist/bench-proxy -registry-node bin/payload/registry-node-$$(go env GOARCH) -testcluster $(TESTCLUSTER) -write bench/proxy $(BENCH_FLAGS)

.PHONY: bench-registry
bench-registry: build ## The registry beside plain distribution: pushes, pulls, small requests (BENCH_FLAGS="-n 1")
	$(GOBUILD) -o dist/bench-registry ./bench/registry
	dist/bench-registry -registry bin/registry -write bench/registry $(BENCH_FLAGS)

.PHONY: bench-scale
bench-scale: build ## One registry and up to 1000 nodes: pulls, a thundering herd; what prepare reads of 5000 nodes (BENCH_FLAGS="-n 1")
	$(GOBUILD) -o dist/bench-scale ./bench/scale
	dist/bench-scale -registry bin/registry -init-hook bin/init-hook -write bench/scale $(BENCH_FLAGS)

.PHONY: bench-bootstrap
bench-bootstrap: build images $(TESTCLUSTER) ## How long each phase of an installation takes on the test cluster (BENCH_FLAGS="-n 1")
	@$(TESTCLUSTER) tool helm >/dev/null
	$(GOBUILD) -o dist/bench-bootstrap ./bench/bootstrap
	dist/bench-bootstrap -testcluster $(TESTCLUSTER) -write bench/bootstrap $(BENCH_FLAGS)

.PHONY: bench-images
bench-images: build $(TESTCLUSTER) ## Pushes and pulls of 40 images beside crane, skopeo and regctl (BENCH_IMAGES="-n 5 -write bench/images")
	$(GOBUILD) -o dist/bench-images ./bench/images
	dist/bench-images -init-hook bin/init-hook -testcluster $(TESTCLUSTER) $(BENCH_IMAGES)

##@ Test cluster
.PHONY: cluster-up
cluster-up: $(TESTCLUSTER) ## Boot a real Kubernetes on this machine (NAME= NODES= IP_FAMILY= KUBE_PROXY=)
	$(TESTCLUSTER) up --name $(NAME) --nodes $(NODES) --ip-family $(IP_FAMILY) --kube-proxy $(KUBE_PROXY)

.PHONY: cluster-down
cluster-down: $(TESTCLUSTER) ## Remove it (NAME=)
	$(TESTCLUSTER) down --name $(NAME)

.PHONY: $(TESTCLUSTER)
$(TESTCLUSTER): deps
	cd test/cluster && CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/$@ ./cmd/testcluster

.PHONY: $(CERTMANAGER)
$(CERTMANAGER): deps
	$(CERTMANAGER_GO) build -trimpath -ldflags "-s -w" -o $(CURDIR)/$@ ./cmd/testcertmanager

.PHONY: clean
clean: ## Remove what was built (the cache of the test cluster stays)
	rm -rf bin dist
	find internal/embedded/dist -type f ! -name .gitignore -delete
