#!/usr/bin/env bash
# Runs chart-testing's lint: ct-lint.sh CT CHART. If the chart differs from the target branch, whose version
# is released, its version must be higher. In a clone without that branch, the version is not checked.
set -euo pipefail

ct=$1 chart=$2
base=origin/main # remote and target-branch of ct.yaml
if fork=$(git merge-base "$base" HEAD 2>/dev/null) && ! git diff --quiet "$fork" -- "$chart" &&
  version=$(git show "$fork:$chart/Chart.yaml" | sed -n 's/^version: *//p') &&
  git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then
  exec "$ct" lint --config ct.yaml # lints changed charts and checks their versions
fi
echo "skipping the check of the chart's version: the chart does not differ from $base, whose version is not released, or $base does not exist"
exec "$ct" lint --config ct.yaml --charts "$chart"
