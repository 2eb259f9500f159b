# Commands of the project; `make` lists them. They need Go, and root on Debian or Ubuntu to install other
# packages.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Programs depend neither on the path of the clone, so Go's build cache serves other clones, too, nor on its commit, so
# bin/init-hook is the one in the image.
export GOFLAGS := $(GOFLAGS) -trimpath -buildvcs=false

CHART    := charts/zarf-registry
VERSION  ?= $(shell sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}/\1/p' $(CHART)/Chart.yaml)
REGISTRY ?= ghcr.io/zarf-dev/zarf-registry
LDFLAGS  := -s -w -X github.com/zarf-dev/zarf-registry/internal/version.Version=$(VERSION)
GOBUILD  := CGO_ENABLED=0 go build -ldflags "$(LDFLAGS)"
# Builds a benchmark: $(BENCHBUILD) ./proxy writes dist/bench-proxy.
BENCHBUILD = cd bench && $(GOBUILD) -o ../dist/$(@F)

# The test cluster; see test/cluster/README.md.
NAME       ?= zarf-registry
NODES      ?= 2
IP_FAMILY  ?= IPv4
KUBE_PROXY ?= iptables
TESTCLUSTER := bin/testcluster

# cert-manager's controllers; see test/certmanager/README.md. Vet, test and build use the same flags, so that
# its dependencies, which take minutes to compile, are compiled once.
CERTMANAGER    := bin/testcertmanager
CERTMANAGER_GO := cd test/certmanager && CGO_ENABLED=0 go

# How long each fuzz target runs, and a regular expression that selects targets.
FUZZ_TIME ?= 1m
FUZZ_RUN  ?=

# Modules beside the root module.
MODULES := bench test/cluster test/certmanager

# Reports known vulnerabilities in code that the programs reach.
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

# Packages whose tests interrupt a run at every write, simulate many CA rotations or compress programs, which is
# too slow with the race detector. make unit tests them without it, and all other packages with it.
NO_RACE := ./internal/hook ./internal/certs ./internal/pki ./tools/release

# Runs go test: $(call GOTEST,unit-bench) writes dist/unit-bench.json, for tools/skips. It prints the lines of
# go test for packages, and in the end failures and skipped tests. make lint runs go vet. Results of
# another clone do not count (-count=1).
GOTEST = "$$($(CURDIR)/$(TESTCLUSTER) tool gotestsum)" --format standard-quiet --jsonfile $(CURDIR)/dist/$(1).json -- -vet=off -count=1

# Paths of the build output for tests and the demo.
export E2E_TESTCLUSTER := $(CURDIR)/$(TESTCLUSTER)
export E2E_CERTMANAGER := $(CURDIR)/$(CERTMANAGER)
export E2E_INIT_HOOK   := $(CURDIR)/bin/init-hook
export E2E_IMAGES      := $(CURDIR)/dist/images
export E2E_CHART       := $(CURDIR)/$(CHART)

# Generates the chart's README, with values in the order of values.yaml.
HELM_DOCS = "$$($(TESTCLUSTER) tool helm-docs)" --chart-search-root charts --sort-values-order file --log-level error

##@ General
.PHONY: help
help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build images $(TESTCLUSTER) ## Boot a cluster (or use KUBECONFIG), install, push, and run a pod
	test/demo.sh

.PHONY: test
test: verify-files lint unit registrycheck-short e2e soak-short ## All checks before a merge; about half an hour on two cores

.PHONY: test-all
test-all: verify-files lint unit unit-all arm64 fuzz registrycheck registrycheck-planted e2e-long e2e-networks soak mutants ## All checks at full length, with fuzzing, random faults and mutants; takes hours

##@ Build
.PHONY: deps
deps: ## Install missing Debian packages for building and testing (needs root)
	@hack/deps.sh

.PHONY: payload
payload: deps ## Build the programs that init-hook embeds, and the chart's list of their digests
	go run ./tools/payload

.PHONY: build
build: payload ## Build init-hook, registry and registry-node for this machine into bin/
	$(GOBUILD) -o bin/ ./cmd/...

.PHONY: images
images: payload ## Build the images as OCI archives for amd64 and arm64 in dist/images, reproducibly
	go run ./tools/images --version $(VERSION) --registry $(REGISTRY) --output dist/images

.PHONY: chart
chart: images ## Package the chart into dist/, reproducibly
	go run ./tools/release -chart-only -version $(VERSION) -output dist

.PHONY: release
release: images ## Build a release in dist/release: chart, programs, images, SBOMs, provenance, bundle (docs/release.md)
	go run ./tools/release -version $(VERSION) -registry $(REGISTRY) -output dist/release $(RELEASE_FLAGS)
	cd dist/release && sha256sum --check --quiet SHA256SUMS *.sha256

.PHONY: bundle
bundle: ## Pack the bundle of a release again, with the signature of its checksums
	go run ./tools/release -bundle-only -version $(VERSION) -output dist/release

##@ Check
.PHONY: unit
unit: images $(TESTCLUSTER) ## Unit tests, with the race detector where it is fast enough
	@mkdir -p dist
	@# -short skips tests with blobs of 2 GiB.
	$(call GOTEST,unit-race) -race -short $$(go list ./cmd/... ./internal/... ./tools/... ./test/e2e/rights ./test/e2e/soak | grep -vxF "$$(go list $(NO_RACE))")
	PROMTOOL="$$($(TESTCLUSTER) tool promtool)" OCI_CONFORMANCE="$$($(TESTCLUSTER) tool conformance)" VERSITYGW="$$($(TESTCLUSTER) tool versitygw)" \
		$(call GOTEST,unit) -timeout 30m ./loader/... $(NO_RACE) ./templates-tests/... ./docs/... ./test/conformance ./test/arm64
	@# The registry's tests again, on S3.
	VERSITYGW="$$($(TESTCLUSTER) tool versitygw)" $(call GOTEST,unit-s3) -short ./internal/registry
	cd bench && $(call GOTEST,unit-bench) ./...
	cd test/cluster && $(call GOTEST,unit-cluster) -race ./...
	cd test/certmanager && CGO_ENABLED=0 $(call GOTEST,unit-certmanager) ./...
	go run ./tools/skips dist/unit-race.json dist/unit.json dist/unit-s3.json dist/unit-bench.json dist/unit-cluster.json dist/unit-certmanager.json

.PHONY: unit-all
unit-all: payload $(TESTCLUSTER) ## Unit tests that make unit skips: blobs of 2 GiB, the race detector for the other packages
	@mkdir -p dist
	$(call GOTEST,unit-all-race) -race -short -timeout 30m $(NO_RACE)
	$(call GOTEST,unit-all) -timeout 30m ./cmd/registry-node ./internal/blobstore ./internal/images ./internal/proxy ./internal/remote
	go run ./tools/skips dist/unit-all-race.json dist/unit-all.json

.PHONY: arm64
arm64: images $(TESTCLUSTER) ## Unit tests of the programs for arm64, emulated by qemu (test/arm64/README.md)
	@mkdir -p bin dist
	CGO_ENABLED=0 go build -o bin/emulate ./tools/emulate
	@# With pages of 64 KiB, which some kernels for arm64 have; make unit runs it with 4 KiB.
	QEMU_PAGESIZE=65536 $(call GOTEST,arm64-pull) ./test/arm64
	GOARCH=arm64 bin/emulate $(call GOTEST,arm64) -short -timeout 2h \
		-skip "^($$(awk '!/^#/ && NF { printf "%s%s", separator, $$2; separator = "|" }' test/arm64/unsupported.txt))$$" \
		./cmd/... ./internal/...
	go run ./tools/skips dist/arm64-pull.json dist/arm64.json

.PHONY: fuzz
fuzz: payload ## Run each fuzz target for FUZZ_TIME (FUZZ_TIME=10m FUZZ_RUN=FuzzMask)
	go run ./tools/fuzz -time $(FUZZ_TIME) -run '$(FUZZ_RUN)'

.PHONY: fuzz-corpus
fuzz-corpus: payload ## Add inputs found by make fuzz that reach new code to the committed corpora (FUZZ_RUN=FuzzMask)
	go run ./tools/fuzz -corpus -run '$(FUZZ_RUN)'

# The seed of the sample of mutants.
MUTANTS_SEED ?= 1
.PHONY: mutants
mutants: payload ## Change the code in 200 small ways and report what no unit test notices (MUTANTS_SEED=2)
	CGO_ENABLED=0 go run ./tools/mutants -seed $(MUTANTS_SEED) $(MUTANTS_FLAGS) $(foreach p,proxy registry preflight certs hook,./internal/$p)

# How many seeds the consistency checker tries, and the first.
SEEDS ?= 100
SEED  ?= 1
# With STORAGE=s3, the registry stores in S3.
STORAGE ?=
# Seeds mostly wait, so more of them than cores run at once. Their mounts end with them.
REGISTRYCHECK = unshare --mount go test ./test/registrycheck -count=1 -v -timeout 24h -parallel 4 -args
.PHONY: registrycheck
registrycheck: $(if $(STORAGE),$(TESTCLUSTER)) ## Check histories of concurrent clients under faults (SEEDS=1 SEED=42 STORAGE=s3; docs/consistency.md)
	$(REGISTRYCHECK) -seeds $(SEEDS) -seed $(SEED) $(if $(filter s3,$(STORAGE)),-s3 "$$($(TESTCLUSTER) tool versitygw)")

.PHONY: registrycheck-short
registrycheck-short: ## The same with four seeds, which have most faults
	$(MAKE) --no-print-directory registrycheck SEEDS=4 SEED=28

.PHONY: registrycheck-planted
registrycheck-planted: ## Check that the consistency checker finds planted bugs
	$(REGISTRYCHECK) -test.run TestPlanted -planted

.PHONY: lint
lint: payload $(TESTCLUSTER) wording ## Run wording, gofmt, go vet, golangci-lint, helm lint, ct lint and kubeconform
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "run gofmt on:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	cd bench && go vet ./...
	cd test/cluster && go vet ./...
	$(CERTMANAGER_GO) vet ./...
	"$$($(TESTCLUSTER) tool golangci-lint)" run --allow-parallel-runners ./...
	cd bench && "$$($(CURDIR)/$(TESTCLUSTER) tool golangci-lint)" run --allow-parallel-runners ./...
	"$$($(TESTCLUSTER) tool helm)" lint --strict $(CHART) --set registryProxy=true
	$(MAKE) --no-print-directory ct-lint kubeconform

.PHONY: wording
wording: ## Check for words and long lines to avoid (hack/wording.sh)
	hack/wording.sh

.PHONY: ct-lint
ct-lint: $(TESTCLUSTER) ## Run ct lint: yamllint, helm lint with every values file in ci/, and the chart's version
	PATH="$$(dirname "$$($(TESTCLUSTER) tool helm)"):$$PATH" hack/ct-lint.sh "$$($(TESTCLUSTER) tool ct)" $(CHART)

.PHONY: kubeconform
kubeconform: $(TESTCLUSTER) ## Validate the rendered chart against the schemas of three Kubernetes minors
	hack/kubeconform.sh $(TESTCLUSTER) $(CHART)

.PHONY: ct-install
ct-install: ## Run ct install with every values file in ci/ (make e2e uses two of them)
	$(MAKE) --no-print-directory e2e-long E2E_RUN=TestChartTesting

.PHONY: alerts
alerts: $(TESTCLUSTER) ## Test the chart's alerts and dashboard with promtool on captured metrics
	PROMTOOL="$$($(TESTCLUSTER) tool promtool)" go test ./templates-tests -run Promtool -count=1

.PHONY: generate
generate: $(TESTCLUSTER) ## Update generated files: go.mod, golden files, the chart's schema and README
	@for module in . $(MODULES); do (cd $$module && go mod tidy); done
	go test ./templates-tests -run Schema -write-schema
	$(HELM_DOCS)
	go test ./templates-tests/... -update
	go test ./cmd/registry-node/root -run Configure -update
	go test ./internal/noderuntime -run Example -update

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
e2e: build images $(TESTCLUSTER) $(CERTMANAGER) ## End-to-end tests on test clusters, or on the cluster of KUBECONFIG (E2E_RUN=TestHelm)
	@hack/deps.sh clients
	@# Build tools before clusters use the CPU.
	@for tool in age-keygen cosign crane critest ct helm helm4 kubectl sops versitygw zarf $(if $(E2E_LONG),crio helm-3.18 helm-3.21 kube-proxy-1.34 oras regctl); do $(TESTCLUSTER) tool $$tool >/dev/null; done
	@$(TESTCLUSTER) build --kubernetes 1.28 --runtime containerd-1.7,crio-1.34
	@mkdir -p dist # dist/e2e.json contains the complete log.
	"$$($(TESTCLUSTER) tool gotestsum)" --format testname --jsonfile dist/e2e.json -- ./test/e2e -count=1 -timeout $(if $(E2E_LONG),180m,60m) $(if $(E2E_RUN),-run '$(E2E_RUN)',-skip '^Test(Soak|Cell)$$')
	@sed -n 's/.*"Test":"\([^"]*\)".*\(figure: .*\|SHORTENED: .*\)\\n".*/\1: \2/p' dist/e2e.json | sort
	go run ./tools/skips dist/e2e.json

.PHONY: e2e-long
e2e-long: export E2E_LONG = 1
e2e-long: e2e ## End-to-end tests at full length, such as a mode switch interrupted at every step

# The networks of the table in test/e2e/networks_test.go.
NETWORKS := $(foreach family,IPv4 IPv6 DualStack,$(family)/iptables $(family)/nftables)
.PHONY: e2e-networks
e2e-networks: ## The deep end-to-end scenarios on each network that they support (E2E_NETWORK=IPv6/nftables make e2e: one)
	@failed=; for network in $(NETWORKS); do \
	  E2E_NETWORK=$$network $(MAKE) --no-print-directory e2e || failed="$$failed $$network"; \
	done; [ -z "$$failed" ] || { echo "failed on$$failed"; exit 1; }

# Options of tools/matrix: MATRIX_FLAGS="-slice 1/4", MATRIX_FLAGS="-run k1.28".
MATRIX_FLAGS ?=
.PHONY: matrix
matrix: build images $(TESTCLUSTER) ## Test each supported configuration and write docs/compatibility.md; resumable, takes an hour
	@for tool in helm helm-3.18 helm-3.21 helm4 kubectl versitygw; do $(TESTCLUSTER) tool $$tool >/dev/null; done
	go run ./tools/matrix $(MATRIX_FLAGS)

.PHONY: matrix-check
matrix-check: ## Run the matrix again and compare with docs/compatibility.json
	$(MAKE) --no-print-directory matrix MATRIX_FLAGS="-check $(MATRIX_FLAGS)"

# How long faults are injected, the seed of their sequence (empty: random), the faults that come first
# (SOAK_FIRST="rotate,kill a proxy"), and the installation: empty, replicas, s3 or cert-manager.
SOAK_TIME   ?= 5m
SOAK_SEED   ?=
SOAK_FIRST  ?=
SOAK_LAYOUT ?=
.PHONY: soak
soak: export SOAK_TIME := $(SOAK_TIME)
soak: export SOAK_SEED := $(SOAK_SEED)
soak: export SOAK_FIRST := $(SOAK_FIRST)
soak: export SOAK_LAYOUT := $(SOAK_LAYOUT)
soak: build images $(TESTCLUSTER) $(if $(filter cert-manager,$(SOAK_LAYOUT)),$(CERTMANAGER)) ## Inject random faults during pulls and pushes (SOAK_TIME=1h SOAK_SEED=42 SOAK_LAYOUT=replicas; docs/soak.md)
	@for tool in helm kubectl; do $(TESTCLUSTER) tool $$tool >/dev/null; done
	@# A single package, because it measures recovery times. -timeout raises go test's default.
	go test ./test/e2e -run '^TestSoak$$' -count=1 -v -timeout 24h

.PHONY: soak-short
soak-short: ## Inject a fixed sequence of faults in 90 s
	$(MAKE) --no-print-directory soak SOAK_TIME=short

# Writes bench/RESULTS.md and fails if a target of the named benchmarks is missed and not listed with a reason.
BENCH_REPORT ?= cd bench && go run ./report .

.PHONY: bench
bench: ## Run all benchmarks, write bench/RESULTS.md and check the targets; the machine must be quiet (BENCH_FLAGS="-n 1")
	for name in proxy registry bootstrap scale scale-s3 herd healer garbage thin images; do \
	  $(MAKE) --no-print-directory bench-$$name BENCH_REPORT=true; \
	done
	$(BENCH_REPORT)

.PHONY: bench-proxy
bench-proxy: payload $(TESTCLUSTER) ## Compare the proxy with socat, stunnel, haproxy, nginx, ghostunnel and a naive one (BENCH_FLAGS="-n 1")
	@hack/deps.sh bench
	$(BENCHBUILD) ./proxy
	dist/bench-proxy -registry-node bin/payload/registry-node-$$(go env GOARCH) -testcluster $(TESTCLUSTER) -write bench/proxy $(BENCH_FLAGS)
	$(BENCH_REPORT) proxy

.PHONY: bench-registry
bench-registry: build ## Compare the registry with plain distribution: pushes, pulls, small requests (BENCH_FLAGS="-n 1")
	$(BENCHBUILD) ./registry
	dist/bench-registry -registry bin/registry -write bench/registry $(BENCH_FLAGS)
	$(BENCH_REPORT) registry

.PHONY: bench-scale
bench-scale: build ## Measure one registry with up to 1000 nodes, and prepare with 5000 nodes (BENCH_FLAGS="-n 1")
	$(BENCHBUILD) ./scale
	dist/bench-scale -registry bin/registry -init-hook bin/init-hook -write bench/scale $(BENCH_FLAGS)
	$(BENCH_REPORT) scale

.PHONY: bench-scale-s3
bench-scale-s3: build $(TESTCLUSTER) ## Measure the same pulls with images in S3 (BENCH_FLAGS="-n 1")
	$(BENCHBUILD) ./scale
	@mkdir -p bench/scale-s3
	dist/bench-scale-s3 -clusters= -s3 "$$($(TESTCLUSTER) tool versitygw)" -registry bin/registry -write bench/scale-s3 $(BENCH_FLAGS)
	$(BENCH_REPORT) scale-s3

.PHONY: bench-herd
bench-herd: build ## Measure 50 nodes that pull at once: caches, failing caches, nginx; 10 minutes for each run (BENCH_FLAGS="-n 3")
	@hack/deps.sh bench
	$(BENCHBUILD) ./herd
	dist/bench-herd -n 1 -registry bin/registry -registry-node bin/registry-node -write bench/herd $(BENCH_FLAGS)
	$(BENCH_REPORT) herd

.PHONY: bench-healer
bench-healer: build ## Measure a healer at rest with 5000 nodes (BENCH_FLAGS="-n 1")
	$(BENCHBUILD) ./scale
	dist/bench-healer -nodes= -herds= -clusters= -healers 5000 -registry-node bin/registry-node -write bench/healer $(BENCH_FLAGS)
	$(BENCH_REPORT) healer

.PHONY: bench-garbage
bench-garbage: build ## Measure how long pushes wait while garbage of 100,000 blobs is collected (BENCH_FLAGS="-n 1")
	$(BENCHBUILD) ./scale
	@mkdir -p bench/garbage
	dist/bench-garbage -nodes= -herds= -clusters= -garbage 100000 -registry bin/registry -write bench/garbage $(BENCH_FLAGS)
	$(BENCH_REPORT) garbage

.PHONY: bench-thin
bench-thin: build ## Compare thin with full archives of 1000 images (BENCH_FLAGS="-n 1")
	$(BENCHBUILD) ./thin
	dist/bench-thin -registry bin/registry -write bench/thin $(BENCH_FLAGS)
	$(BENCH_REPORT) thin

.PHONY: bench-bootstrap
bench-bootstrap: build images $(TESTCLUSTER) ## Measure each phase of an installation on a test cluster (BENCH_FLAGS="-n 1")
	@$(TESTCLUSTER) tool helm >/dev/null
	$(BENCHBUILD) ./bootstrap
	dist/bench-bootstrap -testcluster $(TESTCLUSTER) -write bench/bootstrap $(BENCH_FLAGS)
	$(BENCH_REPORT) bootstrap

.PHONY: bench-images
bench-images: build images $(TESTCLUSTER) ## Compare pushes, and pulls by a node, through a cluster with crane, skopeo and regctl (BENCH_FLAGS="-n 1")
	@for tool in helm kubectl crane regctl; do $(TESTCLUSTER) tool $$tool >/dev/null; done
	$(BENCHBUILD) ./images
	dist/bench-images -init-hook bin/init-hook -testcluster $(TESTCLUSTER) -write bench/images $(BENCH_FLAGS)
	$(BENCH_REPORT) images

##@ Test cluster
.PHONY: cluster-up
cluster-up: $(TESTCLUSTER) ## Boot a multi-node Kubernetes cluster on this machine (NAME= NODES= IP_FAMILY= KUBE_PROXY=)
	$(TESTCLUSTER) up --name $(NAME) --nodes $(NODES) --ip-family $(IP_FAMILY) --kube-proxy $(KUBE_PROXY)

.PHONY: cluster-down
cluster-down: $(TESTCLUSTER) ## Remove the cluster (NAME=)
	$(TESTCLUSTER) down --name $(NAME)

.PHONY: $(TESTCLUSTER)
$(TESTCLUSTER): deps
	cd test/cluster && CGO_ENABLED=0 go build -o $(CURDIR)/$@ ./cmd/testcluster

.PHONY: $(CERTMANAGER)
$(CERTMANAGER): deps
	$(CERTMANAGER_GO) build -ldflags "-s -w" -o $(CURDIR)/$@ ./cmd/testcertmanager

.PHONY: clean
clean: ## Remove build output, but keep the cache of the test cluster
	rm -rf bin dist
	find internal/embedded/dist -type f ! -name .gitignore -delete
	rm -f $(CHART)/files/programs.json
