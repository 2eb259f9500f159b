#!/usr/bin/env bash
# Runs chart-testing's lint with the given arguments. If the chart differs from that of the
# target branch, its version must have been raised; a clone without that branch, or one that
# is at it, has nothing to compare with.
set -euo pipefail

ct=$1 chart=$2
base=origin/main # remote and target-branch of ct.yaml
increment=false
if fork=$(git merge-base "$base" HEAD 2>/dev/null) && ! git diff --quiet "$fork" -- "$chart"; then
  increment=true
fi
echo "checking the version increment against $base: $increment"
exec "$ct" lint --config ct.yaml --charts "$chart" --check-version-increment="$increment"
