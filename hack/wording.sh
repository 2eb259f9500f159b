#!/usr/bin/env bash
# Fails if a file contains words that this project avoids, or if a line of a Markdown page is longer than
# 100 characters outside tables and code blocks.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8 # count characters, not bytes

# Extended regular expressions of whole words, case-insensitive: archaic words, and synonyms of established
# terms (previous, verified, CA rotation).
words=(
  'whoever' 'whomever' 'lest' 'thereof' 'therein' 'whereof' 'for ever' 'of before' 'as of old'
  'nobody is to' 'which there (is|are) not' 'that there is not' 'of who'
  'former' 'formerly' 'proven' 'unproven' 'changes? of authorities' 'is no port'
  # Subjects and objects that are no nouns.
  'only who' 'the inside can' 'the inside knows' 'nobody lists'
)
# Lines that may contain them: names that cannot change.
exceptions=(
  '^CONTRIBUTING\.md:[0-9]+:\|'  # the table of words to avoid
)
# Excludes captured and rendered output, license texts, and this list.
paths=('*.go' '*.md' '*.yaml' '*.yml' '*.tpl' '*.txt' '*.sh' '*.c' Makefile
  ':!*/testdata/*' ':!LICENSE*' ':!hack/wording.sh')

join() { local IFS='|'; echo "$*"; }

wording() {
  git grep -nIiwE "$(join "${words[@]}")" -- "${paths[@]}" | grep -vE "$(join "${exceptions[@]}")" || true
}

long_lines() {
  git ls-files -- '*.md' ':!*RESULTS.md' | while read -r file; do
    # Empty the lines of code blocks, tables and images, to keep line numbers.
    awk '/^ *```/ {code = !code; print ""; next} code || /^ *\|/ || /^    / || /^!\[/ {print ""; next} {print}' "$file" |
      { grep -nE '^.{101,}' || true; } | sed "s|^\([0-9]*\):.*|$file:\1: longer than 100 characters|"
  done
}

findings=$(wording; long_lines)
if [ -n "$findings" ]; then
  echo "$findings" >&2
  exit 1
fi
