#!/usr/bin/env bash
# Runs each fuzz target whose name matches a regular expression for a time: hack/fuzz.sh 10m FuzzMask
# go test -fuzz takes one target of one package.
set -euo pipefail
cd "$(dirname "$0")/.."
found='' failed=''
# Only packages with a target, because go test -list compiles the tests.
for package in $(grep -rl --include='*_test.go' '^func Fuzz' cmd internal loader tools | xargs -n 1 dirname | sort -u); do
  for target in $(go test -list "${2:-.}" "./$package" | grep '^Fuzz' || true); do
    found=1
    echo "$package $target"
    go test "./$package" -run '^$' -fuzz "^$target\$" -fuzztime "$1" || failed+=" $target"
  done
done
[ -n "$found" ] || { echo "no fuzz target matches ${2:-.}" >&2; exit 1; }
[ -z "$failed" ] || { echo "failed:$failed; inputs are in testdata/fuzz" >&2; exit 1; }
