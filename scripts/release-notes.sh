#!/bin/bash
# Prints the notes of a release (v1.2.3): its part of CHANGELOG.md in .github/release-notes.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=${1#v}
changes=$(awk -v wanted="## $version" 'index($0, "## ") == 1 { on = index($0, wanted) == 1; next } on' CHANGELOG.md)
[ -n "${changes//[[:space:]]/}" ] || changes=$(awk '/^## /{ on = /^## Unreleased/; next } on' CHANGELOG.md)
[ -n "${changes//[[:space:]]/}" ] || { echo "CHANGELOG.md has nothing about $version" >&2; exit 1; }
sed 1d .github/release-notes.md | sed "s/@VERSION@/$version/g" | while IFS= read -r line; do
  if [ "$line" = @CHANGES@ ]; then printf '%s\n' "$changes"; else printf '%s\n' "$line"; fi
done
