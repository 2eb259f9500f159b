# Commands of the project; `make` lists them. They need Go, and what is more than make test needs root on Debian or
# Ubuntu to install packages.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Programs depend neither on the path of the clone, so Go's build cache serves other clones, too, nor on its commit, so
# bin/zarf-registry is the one in the image. Without cgo, programs, tests and tools share the build cache, and Go alone builds
# them; the race detector sets it.
export GOFLAGS := $(GOFLAGS) -trimpath -buildvcs=false
export CGO_ENABLED ?= 0

CHART    := charts/zarf-registry
VERSION  ?= $(shell sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}/\1/p' $(CHART)/Chart.yaml)
REGISTRY ?= ghcr.io/zarf-dev/zarf-registry
COMMIT   := $(shell git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null)
VARIABLE := github.com/zarf-dev/zarf-registry/internal/version
LDFLAGS  := -s -w -X $(VARIABLE).Version=$(VERSION) -X $(VARIABLE).Commit=$(COMMIT)
GOBUILD  := go build -ldflags "$(LDFLAGS)"
# Builds a benchmark: $(BENCHBUILD) ./proxy writes dist/bench-proxy, which writes its results to dist/bench/proxy.
BENCHBUILD = mkdir -p dist/bench/$(@:bench-%=%) && cd bench && $(GOBUILD) -o ../dist/$(@F)

# The networks of the table in test/e2e/scenarios.
NETWORKS := $(foreach family,IPv4 IPv6 DualStack,$(family)-iptables $(family)-nftables)

# What programs are built for. make demo builds for this machine only.
ARCHITECTURES ?= amd64 arm64
ARCHITECTURE  := $(shell go env GOARCH)
empty :=
comma := ,
FOR = -architectures $(subst $(empty) $(empty),$(comma),$(strip $(ARCHITECTURES)))

# The test cluster; see test/cluster/README.md.
NAME       ?= zarf-registry
NODES      ?= 2
IP_FAMILY  ?= IPv4
KUBE_PROXY ?= iptables
TESTCLUSTER := bin/testcluster
TOOL = "$$($(CURDIR)/$(TESTCLUSTER) tool $(1))"
# Builds tools before they are used: in an argument or an assignment, a failing $(TOOL) does not end a recipe.
TOOLS = @for tool in $(1); do $(TESTCLUSTER) tool $$tool >/dev/null; done
# Helm of the root module's version, which shares most packages with init-hook.
HELM := bin/helm

# cert-manager's controllers; see test/certmanager/README.md. Vet, test and build use the same flags, so that
# its dependencies, which take minutes to compile, are compiled once.
CERTMANAGER    := bin/testcertmanager

# How long each fuzz target runs, and a regular expression that selects targets.
FUZZ_TIME ?= 1m
FUZZ_RUN  ?=

# Modules beside the root module.
MODULES := bench test/cluster test/certmanager

# Reports known vulnerabilities in code that the programs reach.
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

# Packages with much concurrency, which make race runs with the race detector. make race-all runs all.
RACE := ./internal/registry/... ./internal/node/proxy ./internal/node/cache ./internal/net/... ./internal/images/...

# Results never come from the cache (-count=1), linking takes half the time without DWARF, and make test and make lint
# run go vet.
GOTEST := go test -json -vet=off -count=1 -timeout=1h -ldflags=-w
# Prints results of packages, failures and skipped tests: $(call TEST,./...).
TEST = $(GOTEST) $(1) | go run $(CURDIR)/tools/testsummary

# Packages whose tests all need more than Go; they are large programs. make unit-all and make e2e run them.
NOT_IN_TEST := ./test/conformance ./test/e2e ./test/sops
# Go's build cache has no linked tests, and linking all of them takes minutes of CPU time. With -o, the tests in dist/tests
# are linked again only if they changed. It needs different names: $(call LINKED,folder) links into a folder. Four
# packages run at once, because the tests of some mostly wait.
LINKED = $(GOTEST) -short -p 4 -o $(CURDIR)/dist/tests/$(1)/
# Tells testsummary that go test has failed, which it does without a failed test if it cannot link one.
EXIT := echo '{"Action":"exit"}'

# Paths of the build output for tests and the demo.
export E2E_TESTCLUSTER := $(CURDIR)/$(TESTCLUSTER)
export E2E_CERTMANAGER := $(CURDIR)/$(CERTMANAGER)
export E2E_ZARF_REGISTRY := $(CURDIR)/bin/zarf-registry
export E2E_HELM        := $(CURDIR)/$(HELM)
export E2E_IMAGES      := $(CURDIR)/dist/images
export E2E_CHART       := $(CURDIR)/$(CHART)

# Generates the chart's README, with values in the order of values.yaml.
HELM_DOCS = $(call TOOL,helm-docs) --chart-search-root charts --sort-values-order file --log-level error

##@ General
.PHONY: help
help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Boot a cluster (or use KUBECONFIG), install, push, and run a pod; 10 to 25 minutes on a new machine
	@hack/deps.sh build $(if $(KUBECONFIG),,cluster)
	$(MAKE) --no-print-directory -j2 ARCHITECTURES=$(ARCHITECTURE) demo-programs $(if $(KUBECONFIG),$(TESTCLUSTER),demo-cluster)
	test/demo.sh

.PHONY: demo-programs demo-cluster
demo-programs: images
	install bin/images/init-hook-$(ARCHITECTURE) bin/zarf-registry
	@# Afterwards, because both link nearly the same packages. On a cluster of KUBECONFIG, the demo needs no Helm.
	$(if $(KUBECONFIG),,$(MAKE) --no-print-directory $(HELM))
demo-cluster: $(TESTCLUSTER)
	$(TESTCLUSTER) build --dns=false --network-policy=false --crictl=false

.PHONY: test
test: ## Unit and chart tests; needs only Go and takes three minutes on two cores
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "run gofmt on:"; echo "$$unformatted"; exit 1; }
	go vet ./... && cd test/cluster && go vet ./...
	@# What takes longest begins first.
	@mkdir -p dist/tests/{root,cli,cluster}
	unset $${!E2E_@}; { \
	  $(call LINKED,root) ./templates-tests ./internal/registry ./loader ./internal/{node/proxy,hook,node/cache} \
	    $$(go list ./... | grep -vE '/zarf-registry/(cmd|tools|internal/cli)/' | grep -vxF "$$(go list $(NOT_IN_TEST))") || $(EXIT); \
	  $(call LINKED,cli) $$(go list ./internal/cli/... | grep /internal/cli/) || $(EXIT); \
	  $(GOTEST) -short ./cmd/... ./tools/... || $(EXIT); \
	  cd test/cluster && $(call LINKED,cluster) ./... || $(EXIT); \
	} | go run ./tools/testsummary

.PHONY: check
check: test check-rest ## All checks before a merge, with programs for this machine only (needs root)

.PHONY: check-rest
check-rest: # make check without make test
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory ARCHITECTURES=$(ARCHITECTURE) race
	$(MAKE) --no-print-directory ARCHITECTURES=$(ARCHITECTURE) s3
	$(MAKE) --no-print-directory conformance registrycheck-short
	@# A change may concern TestWorkstation, which makes a release of programs for all architectures.
	$(MAKE) --no-print-directory $(if $(E2E_CHANGED_SINCE),,ARCHITECTURES=$(ARCHITECTURE)) e2e E2E_TIER=core

# The parts of make test-all, dealt to shards in turn; end-to-end tests at full length are split among all shards.
PARTS := check race-all unit-all arm64 fuzz registrycheck registrycheck-s3 registrycheck-planted soak $(NETWORKS:%=e2e-%)
SHARD ?= 1/1
.PHONY: test-all
test-all: ## All checks at full length, with fuzzing and random faults; takes hours (SHARD=2/6: a sixth of them)
	@failed=; i=0; for part in $(PARTS); do \
	  i=$$((i + 1)); [ $$((i % $(notdir $(SHARD)))) = $$(($(patsubst %/,%,$(dir $(SHARD))) % $(notdir $(SHARD)))) ] || continue; \
	  echo "==> make $$part"; $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
	done; \
	echo "==> make e2e-long, shard $(SHARD)"; $(MAKE) --no-print-directory e2e-long E2E_SHARD=$(SHARD) || failed="$$failed e2e-long"; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

##@ Build
.PHONY: deps
deps: ## Install missing Debian packages for everything (needs root)
	@hack/deps.sh build cross race cluster e2e lint disks emulate clients bench

.PHONY: payload
payload: ## Build the programs that init-hook embeds, and the chart's list of their digests (ARCHITECTURES=amd64)
	@hack/deps.sh build $(if $(filter-out $(ARCHITECTURE),$(ARCHITECTURES)),cross)
	go run ./tools/payload $(FOR)

.PHONY: build
build: payload ## Build zarf-registry, registry and registry-node for this machine into bin/
	$(GOBUILD) -o bin/ ./cmd/...
	mv bin/init-hook bin/zarf-registry

.PHONY: images
images: payload ## Build the images as OCI archives in dist/images, reproducibly (ARCHITECTURES=amd64)
	go run ./tools/images --version $(VERSION) --registry $(REGISTRY) --output dist/images $(FOR)

.PHONY: chart
chart: images ## Package the chart into dist/, reproducibly
	go run ./tools/release -chart-only -version $(VERSION) -output dist

.PHONY: release
release: images ## Build a release in dist/release: chart, programs, images, SBOMs, bundle (docs/dev/release.md)
	go run ./tools/release -version $(VERSION) -registry $(REGISTRY) -output dist/release $(RELEASE_FLAGS)
	cd dist/release && sha256sum --check --quiet SHA256SUMS *.sha256

.PHONY: bundle
bundle: ## Pack the bundle of a release again, with the signature of its checksums
	go run ./tools/release -bundle-only -version $(VERSION) -output dist/release

.PHONY: rehearse
rehearse: $(TESTCLUSTER) $(HELM) ## Rehearse a release of HEAD without internet, onto a test cluster (docs/dev/release.md)
	@hack/deps.sh build cross cluster rehearse
	$(call TOOLS,cosign crane kubectl oras)
	@# What it needs from the internet.
	export GOTOOLCHAIN=$$(sed -n 's/^toolchain //p' go.mod) && go mod download && \
	  go run "$$(sed -n 's/.*sbomTool = "\(.*\)"/\1/p' tools/release/sbom.go)" version
	hack/rehearse.sh

##@ Check
.PHONY: race
race: payload ## Unit tests with the race detector, of packages with much concurrency
	@hack/deps.sh race
	export CGO_ENABLED=1; $(call TEST,-race -short $(RACE))

.PHONY: s3
s3: payload $(TESTCLUSTER) ## The registry's unit tests again, on S3
	$(call TOOLS,versitygw)
	VERSITYGW=$(call TOOL,versitygw) $(call TEST,-short ./internal/registry/...)

.PHONY: conformance
conformance: $(TESTCLUSTER) ## OCI's conformance suite of the distribution specification
	$(call TOOLS,conformance versitygw)
	OCI_CONFORMANCE=$(call TOOL,conformance) VERSITYGW=$(call TOOL,versitygw) $(call TEST,./test/conformance)

.PHONY: race-all
race-all: payload ## All unit tests with the race detector
	@hack/deps.sh race
	export CGO_ENABLED=1; $(call TEST,-race -short ./internal/registry ./cmd/... ./internal/... ./tools/... ./test/e2e/soak)

.PHONY: unit-all
unit-all: images $(TESTCLUSTER) $(HELM) ## Unit tests that make test skips: blobs of 2 GiB, the OCI conformance suite, promtool, the loader, cert-manager
	$(call TOOLS,promtool conformance versitygw sops age-keygen)
	PROMTOOL=$(call TOOL,promtool) OCI_CONFORMANCE=$(call TOOL,conformance) VERSITYGW=$(call TOOL,versitygw) \
		$(call TEST,./cmd/... ./internal/... ./loader ./templates-tests ./test/conformance ./tools/...)
	PATH="$(CURDIR)/bin:$$(dirname $(call TOOL,sops)):$$(dirname $(call TOOL,age-keygen)):$$PATH" $(call TEST,./test/sops)
	cd bench && VERSITYGW=$(call TOOL,versitygw) $(call TEST,./...)
	cd test/certmanager && go vet ./... && $(call TEST,./...)

.PHONY: arm64
arm64: images $(TESTCLUSTER) ## Unit tests of the programs for arm64, emulated by qemu (test/arm64/README.md)
	@hack/deps.sh emulate
	@mkdir -p bin
	go build -o bin/emulate ./tools/emulate
	$(call TEST,./test/arm64)
	@# With pages of 64 KiB, which some kernels for arm64 have.
	QEMU_PAGESIZE=65536 $(call TEST,./test/arm64)
	GOARCH=arm64 bin/emulate $(GOTEST) -short -timeout 2h \
		-skip "^($$(awk '!/^#/ && NF { printf "%s%s", separator, $$2; separator = "|" }' test/arm64/unsupported.txt))$$" \
		./cmd/... ./internal/... | go run ./tools/testsummary

.PHONY: fuzz
fuzz: payload ## Run each fuzz target for FUZZ_TIME (FUZZ_TIME=10m FUZZ_RUN=FuzzConnection)
	hack/fuzz.sh $(FUZZ_TIME) '$(FUZZ_RUN)'

# Packages that make mutants changes, one after the other, and the runner. Large packages take hours.
MUTANTS  ?= $(foreach p,node/proxy registry hook,./internal/$p)
GREMLINS := github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0
.PHONY: mutants
mutants: payload ## Change the code in small ways and report what no unit test notices (MUTANTS=./internal/net/httprange)
	for package in $(MUTANTS); do go run $(GREMLINS) unleash --workers 1 $$package; done

# How many seeds the consistency checker tries, and the first.
SEEDS ?= 100
SEED  ?= 1
# With STORAGE=s3, the registry stores in S3; with STORAGE=xfs, power cuts happen to XFS.
STORAGE ?=
# Seeds mostly wait, so more of them than cores run at once. Their mounts end with them.
REGISTRYCHECK = unshare --mount go test ./test/registrycheck -count=1 -v -timeout 24h -parallel 4 -args
.PHONY: registrycheck
registrycheck: $(if $(filter s3,$(STORAGE)),$(TESTCLUSTER)) ## Check histories of concurrent clients under faults (SEEDS=1 SEED=42 STORAGE=s3|xfs; docs/dev/consistency.md)
	@hack/deps.sh disks
	$(if $(filter s3,$(STORAGE)),$(call TOOLS,versitygw))
	$(REGISTRYCHECK) -seeds $(SEEDS) -seed $(SEED) $(if $(filter s3,$(STORAGE)),-s3 $(call TOOL,versitygw)) $(if $(filter xfs,$(STORAGE)),-xfs)

.PHONY: registrycheck-s3
registrycheck-s3:
	$(MAKE) --no-print-directory registrycheck STORAGE=s3

.PHONY: registrycheck-short
registrycheck-short: ## The same with four seeds, which have most faults
	$(MAKE) --no-print-directory registrycheck SEEDS=4 SEED=28

.PHONY: registrycheck-planted
registrycheck-planted: ## Check that the consistency checker finds planted bugs
	$(REGISTRYCHECK) -test.run TestPlanted -planted

.PHONY: lint
lint: $(TESTCLUSTER) $(HELM) wording verify-files ## Run wording, golangci-lint, helm lint, ct lint and kubeconform
	cd bench && go vet ./...
	$(call TOOL,golangci-lint) run --allow-parallel-runners ./...
	cd bench && $(call TOOL,golangci-lint) run --allow-parallel-runners ./...
	$(HELM) lint --strict $(CHART) --set registryProxy=true
	$(MAKE) --no-print-directory ct-lint kubeconform
	go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

.PHONY: wording
wording: ## Check for words and long lines to avoid (hack/wording.sh)
	hack/wording.sh

.PHONY: ct-lint
ct-lint: $(TESTCLUSTER) $(HELM) ## Run ct lint: yamllint, helm lint with every values file in ci/, and the chart's version
	@hack/deps.sh lint
	PATH="$(CURDIR)/bin:$$PATH" hack/ct-lint.sh $(call TOOL,ct) $(CHART)

.PHONY: kubeconform
kubeconform: $(TESTCLUSTER) $(HELM) ## Validate the rendered chart against the schemas of the oldest and the newest Kubernetes
	hack/kubeconform.sh $(TESTCLUSTER) $(HELM) $(CHART)

.PHONY: ct-install
ct-install: ## Run ct install with every values file in ci/ (make check uses two of them)
	$(MAKE) --no-print-directory e2e-long E2E_RUN=TestChartTesting

.PHONY: alerts
alerts: $(TESTCLUSTER) ## Test the chart's alerts and dashboard with promtool on captured metrics
	$(call TOOLS,promtool)
	PROMTOOL=$(call TOOL,promtool) go test ./templates-tests -run Promtool -count=1

.PHONY: generate
generate: $(TESTCLUSTER) ## Update generated files: go.mod, golden files, the chart's schema and README
	@for module in . $(MODULES); do (cd $$module && go mod tidy); done
	go test ./templates-tests -run Schema -write-schema
	$(HELM_DOCS)
	go test ./templates-tests/... -update
	go test ./cmd/registry-node/root -run Configure -update
	go test ./internal/node/noderuntime -run Example -update

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities (needs https://vuln.go.dev)
	go run $(GOVULNCHECK) ./...

.PHONY: verify
verify: verify-files ## Check that generated files are up to date
	go test ./templates-tests -run 'Schema|README'

.PHONY: verify-files
verify-files: $(TESTCLUSTER) # make verify without unit tests
	@for module in . $(MODULES); do (cd $$module && go mod tidy -diff); done
	$(HELM_DOCS) --dry-run | diff -u $(CHART)/README.md -

.PHONY: e2e
e2e: build images $(TESTCLUSTER) $(HELM) ## End-to-end tests on test clusters, or on the cluster of KUBECONFIG (E2E_RUN=TestHelm)
	@hack/deps.sh $(if $(KUBECONFIG),,cluster) e2e
	@mkdir -p dist # dist/e2e.json contains the complete log.
	@# First what the scenarios need is built, which takes more time than the tests on a new machine.
	E2E_PREPARE=1 go test -vet=off -ldflags=-w ./test/e2e -count=1 -timeout 3h -v $(if $(E2E_RUN),-run '$(E2E_RUN)')
	$(GOTEST) ./test/e2e -timeout 3h $(if $(E2E_RUN),-run '$(E2E_RUN)') | \
	  tee dist/e2e.json | go run ./tools/testsummary
	@sed -n 's/.*"Test":"\([^"]*\)".*\(figure: .*\|SHORTENED: .*\)\\n".*/\1: \2/p' dist/e2e.json | sort

.PHONY: e2e-long
e2e-long: export E2E_LONG = 1
e2e-long: e2e ## End-to-end tests at full length, such as a mode switch interrupted at every step

.PHONY: screenshots
screenshots: ## Make docs/images/browse-*.png from the pages of a test (dist/screenshots has all)
	@mkdir -p dist/screenshots
	E2E_SCREENSHOTS=$(CURDIR)/dist/screenshots $(MAKE) --no-print-directory e2e E2E_RUN='^TestImages$$'
	for page in images image; do cp dist/screenshots/browse-$$page-light-1400.png docs/images/browse-$$page.png; done

.PHONY: e2e-networks $(NETWORKS:%=e2e-%)
e2e-networks: $(NETWORKS:%=e2e-%) ## The deep end-to-end scenarios on each network that they support (E2E_NETWORK=IPv6/nftables make e2e: one)
$(NETWORKS:%=e2e-%): e2e-%:
	E2E_NETWORK=$(subst -,/,$*) $(MAKE) --no-print-directory e2e

# A regular expression that selects configurations: MATRIX='k1.36.*crio'.
MATRIX ?=
.PHONY: matrix
matrix: build images $(TESTCLUSTER) $(HELM) ## Test each configuration, and write rows of docs/dev/compatibility.md to dist/matrix; takes an hour
	hack/matrix.sh '$(MATRIX)'

# How long faults are injected, the seed of their sequence (empty: random), the faults that come first
# (SOAK_FIRST="rotate,kill a proxy"), and the installation: empty, replicas, s3, cert-manager or ipv6.
SOAK_TIME   ?= 5m
SOAK_SEED   ?=
SOAK_FIRST  ?=
SOAK_LAYOUT ?=
.PHONY: soak
soak: export SOAK_TIME := $(SOAK_TIME)
soak: export SOAK_SEED := $(SOAK_SEED)
soak: export SOAK_FIRST := $(SOAK_FIRST)
soak: export SOAK_LAYOUT := $(SOAK_LAYOUT)
soak: build images $(TESTCLUSTER) $(HELM) $(if $(filter cert-manager,$(SOAK_LAYOUT)),$(CERTMANAGER)) ## Inject random faults during pulls and pushes (SOAK_TIME=1h SOAK_SEED=42 SOAK_LAYOUT=replicas; docs/dev/soak.md)
	@hack/deps.sh cluster
	@# A single package, because it measures recovery times. -timeout raises go test's default.
	go test ./test/e2e -run '^TestSoak$$' -count=1 -v -timeout 24h

.PHONY: soak-short
soak-short: ## Inject a fixed sequence of faults in 90 s
	$(MAKE) --no-print-directory soak SOAK_TIME=short

# Writes dist/bench/RESULTS.md, beside the results of the previous run of all benchmarks, and fails if a target of the
# named benchmarks is missed without a known cause.
BENCH_REPORT ?= cd bench && go run ./report ../dist/bench ../dist/bench-previous

.PHONY: bench
bench: ## Run all benchmarks (40 minutes), write dist/bench/RESULTS.md and check the targets; the machine must be quiet
	@if [ -d dist/bench ]; then rm -rf dist/bench-previous && mv dist/bench dist/bench-previous; fi
	@# make bench-scale takes as long again.
	@if [ -d dist/bench-previous/scale ]; then mkdir -p dist/bench && cp -r dist/bench-previous/scale dist/bench; fi
	for name in cluster nodes proxy registry garbage; do \
	  $(MAKE) --no-print-directory bench-$$name BENCH_REPORT=true; \
	done
	$(BENCH_REPORT)

.PHONY: bench-cluster
bench-cluster: build images $(TESTCLUSTER) $(HELM) ## Measure a cluster: install, push, pull, idle nodes; beside distribution, crane, skopeo, regctl (BENCH_FLAGS="-n 1")
	@hack/deps.sh bench cluster
	@for tool in kubectl crane regctl; do $(TESTCLUSTER) tool $$tool >/dev/null; done
	$(BENCHBUILD) ./cluster
	dist/bench-cluster -testcluster $(TESTCLUSTER) -write dist/bench/cluster $(BENCH_FLAGS)
	$(BENCH_REPORT) cluster

.PHONY: bench-nodes
bench-nodes: build ## Measure pulls by 1 to 50 nodes with and without caches, and latency; beside nginx, distribution (BENCH_FLAGS="-n 3")
	@hack/deps.sh bench
	$(BENCHBUILD) ./nodes
	dist/bench-nodes -registry bin/registry -registry-node bin/registry-node -write dist/bench/nodes $(BENCH_FLAGS)
	$(BENCH_REPORT) nodes

# How many nodes are simulated, one run after the other.
SCALE ?= 10 100 300 1000
.PHONY: bench-scale
bench-scale: build $(TESTCLUSTER) ## Measure what a release costs an API server with many simulated nodes (SCALE="10 100")
	@hack/deps.sh cluster
	cd bench && $(GOBUILD) -o ../dist/bench-cluster ./cluster
	mkdir -p dist/bench/scale
	for nodes in $(SCALE); do dist/bench-cluster scale -nodes $$nodes -write dist/bench/scale $(BENCH_FLAGS); done
	$(BENCH_REPORT) scale

.PHONY: bench-proxy
bench-proxy: payload $(TESTCLUSTER) ## Measure the proxy beside socat, haproxy, nginx, ghostunnel and a naive one (BENCH_FLAGS="-n 1")
	@hack/deps.sh bench
	$(BENCHBUILD) ./proxy
	dist/bench-proxy -registry-node bin/payload/registry-node-$$(go env GOARCH) -testcluster $(TESTCLUSTER) -write dist/bench/proxy $(BENCH_FLAGS)
	$(BENCH_REPORT) proxy

.PHONY: bench-registry
bench-registry: build ## Measure the registry beside distribution (BENCH_FLAGS="-n 1")
	$(BENCHBUILD) ./registry
	dist/bench-registry -n 3 -registry bin/registry -write dist/bench/registry $(BENCH_FLAGS)
	$(BENCH_REPORT) registry

.PHONY: bench-garbage
bench-garbage: build $(TESTCLUSTER) ## Measure a garbage collection in S3 with 100,000 blobs (BENCH_FLAGS="-blobs 20000")
	$(BENCHBUILD) ./garbage
	dist/bench-garbage -n 1 -s3 $(call TOOL,versitygw) -registry bin/registry -write dist/bench/garbage $(BENCH_FLAGS)
	$(BENCH_REPORT) garbage

##@ Test cluster
.PHONY: cluster-up
cluster-up: $(TESTCLUSTER) ## Boot a multi-node Kubernetes cluster on this machine (NAME= NODES= IP_FAMILY= KUBE_PROXY=)
	@hack/deps.sh cluster
	$(TESTCLUSTER) up --name $(NAME) --nodes $(NODES) --ip-family $(IP_FAMILY) --kube-proxy $(KUBE_PROXY)

.PHONY: cluster-down
cluster-down: $(TESTCLUSTER) ## Remove the cluster (NAME=)
	$(TESTCLUSTER) down --name $(NAME)

.PHONY: $(TESTCLUSTER)
$(TESTCLUSTER):
	cd test/cluster && go build -o $(CURDIR)/$@ ./cmd/testcluster

.PHONY: $(HELM)
$(HELM):
	go build -ldflags "-s -w -X helm.sh/helm/v3/internal/version.version=$$(go list -m -f '{{.Version}}' helm.sh/helm/v3)" -o $@ helm.sh/helm/v3/cmd/helm

.PHONY: $(CERTMANAGER)
$(CERTMANAGER):
	cd test/certmanager && go build -ldflags "-s -w" -o $(CURDIR)/$@ ./cmd/testcertmanager

.PHONY: clean
clean: ## Remove build output, but keep the cache of the test cluster
	rm -rf bin dist
	find internal/payload/embedded/dist -type f ! -name .gitignore -delete
	rm -f $(CHART)/files/programs.json $(CHART)/files/init-hook.json
