#!/usr/bin/env bash
# Prints the commands of the README's N-th code block, without comments and prompts, so that CI runs what readers run:
# hack/readme-commands.sh N
set -euo pipefail
cd "$(dirname "$0")/.."

commands=$(awk -v n="${1:?which code block: hack/readme-commands.sh N}" '
  /^```/ { inside = !inside; block += inside; next }
  inside && block == n { sub(/^\$ /, ""); sub(/(^|[ \t]+)#.*/, ""); if ($0 != "") print }' README.md)
[ -n "$commands" ] || { echo "README.md has no commands in code block $1" >&2; exit 1; }
echo "$commands"
