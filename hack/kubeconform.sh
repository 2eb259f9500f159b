#!/usr/bin/env bash
# Validates the rendered chart, with every values file, against the schemas of three minor versions
# of Kubernetes: the oldest that Chart.yaml allows, one in between, and the newest.
#   hack/kubeconform.sh TESTCLUSTER CHART
set -euo pipefail
testcluster=$1 chart=$2
versions=(1.28.15 1.34.5 1.36.3)
# Custom resources, whose schemas Kubernetes does not publish. The template tests check them.
others=Certificate,Issuer,ServiceMonitor,PodMonitor,PrometheusRule,HTTPRoute,BackendTLSPolicy,TLSRoute,SecurityContextConstraints

grep -q "^kubeVersion: .>=${versions[0]%.*}\.0" "$chart/Chart.yaml" || { echo "the oldest Kubernetes of $chart/Chart.yaml is not ${versions[0]%.*}: change $0 or it" >&2; exit 1; }
schemas=${ZARF_REGISTRY_CACHE:-/var/cache/zarf-registry}/schemas
go run ./tools/schemas --output "$schemas" "${versions[@]/#/v}"
helm=$("$testcluster" tool helm)
kubeconform=$("$testcluster" tool kubeconform)
rendered=$(mktemp -d)
trap 'rm -rf "$rendered"' EXIT
for values in "$chart"/ci/*-values.yaml templates-tests/testdata/values/*-values.yaml; do
  "$helm" template zarf-registry "$chart" --namespace zarf --kube-version "${versions[0]}" --values "$values" >"$rendered/$(basename "$values")"
done
for version in "${versions[@]}"; do
  check=("$kubeconform" -strict -summary -kubernetes-version "$version" -skip "$others"
    -schema-location "$schemas/{{.NormalizedKubernetesVersion}}/{{.ResourceKind}}{{.KindSuffix}}.json")
  if "${check[@]}" <<<'{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, imag: b}]}}' >/dev/null; then
    echo "Kubernetes $version: an unknown field is accepted, so nothing was checked" >&2
    exit 1
  fi
  echo "Kubernetes $version:"
  "${check[@]}" "$rendered"
done
