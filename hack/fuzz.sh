#!/usr/bin/env bash
# Runs each fuzz target whose name matches a regular expression for a time: hack/fuzz.sh 10m FuzzConnection
# go test -fuzz takes one target of one package.
set -euo pipefail
cd "$(dirname "$0")/.."
found='' failed=''
# Not go test -list, which compiles the tests of each package.
while IFS=: read -r file _ target; do
  [[ $target =~ ${2:-.} ]] || continue
  found=1
  echo "$(dirname "$file") $target"
  go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$1" </dev/null || failed+=" $target"
done < <(grep -rHo --include='*_test.go' '^func Fuzz\w*' cmd internal loader tools | sed 's/func /:/')
[ -n "$found" ] || { echo "no fuzz target matches ${2:-.}" >&2; exit 1; }
[ -z "$failed" ] || { echo "failed:$failed; inputs are in testdata/fuzz" >&2; exit 1; }
