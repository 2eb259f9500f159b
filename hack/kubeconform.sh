#!/usr/bin/env bash
# Renders the chart with every values file for two Kubernetes versions, and validates it against their
# schemas: the oldest that Chart.yaml allows, and the newest.
#   hack/kubeconform.sh TESTCLUSTER HELM CHART
set -euo pipefail
testcluster=$1 helm=$2 chart=$3
versions=(1.30.14 1.36.3)
# Custom resources have no schema here. The template tests check them.
custom=Certificate,Issuer,PodMonitor,PrometheusRule,HTTPRoute,BackendTLSPolicy,TLSRoute,SecurityContextConstraints

grep -q "^kubeVersion: .>=${versions[0]%.*}\.0" "$chart/Chart.yaml" || { echo "the minimum kubeVersion of $chart/Chart.yaml is not ${versions[0]%.*}: update $0 or Chart.yaml" >&2; exit 1; }
schemas=${ZARF_REGISTRY_CACHE:-/var/cache/zarf-registry}/schemas
go run ./tools/schemas --output "$schemas" "${versions[@]/#/v}"
kubeconform=$("$testcluster" tool kubeconform)
rendered=$(mktemp -d)
trap 'rm -rf "$rendered"' EXIT
for version in "${versions[@]}"; do
  served=()
  for api in v1 v1beta1; do
    if [[ -e $schemas/v$version/mutatingadmissionpolicy-admissionregistration-$api.json ]]; then
      served+=(--api-versions "v1/Pod,admissionregistration.k8s.io/$api/MutatingAdmissionPolicy")
    fi
  done
  for values in "$chart"/ci/*-values.yaml templates-tests/testdata/values/*-values.yaml; do
    release=zarf-registry
    [[ $values != */zarf-values.yaml ]] || release=zarf-docker-registry # the name that Zarf expects
    [[ $values != */rewrite*-values.yaml || ${#served[@]} -gt 0 ]] || continue # the chart refuses it
    "$helm" template "$release" "$chart" --namespace zarf --kube-version "$version" "${served[@]}" --values "$values" >"$rendered/$(basename "$values")"
  done
  check=("$kubeconform" -strict -summary -kubernetes-version "$version" -skip "$custom"
    -schema-location "$schemas/{{.NormalizedKubernetesVersion}}/{{.ResourceKind}}{{.KindSuffix}}.json")
  if "${check[@]}" <<<'{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, imag: b}]}}' >/dev/null; then
    echo "Kubernetes $version: the schemas accept an unknown field" >&2
    exit 1
  fi
  echo "Kubernetes $version:"
  "${check[@]}" "$rendered"
done
