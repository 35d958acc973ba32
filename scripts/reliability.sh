#!/bin/bash
# Whether every test that docs/reliability.md names is in the source: a function, or the name of a test.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
page=docs/reliability.md missing=0 count=0
while read -r name; do
  count=$((count + 1))
  grep -rqE "(fn |\")$name\b" crates --include='*.rs' || { echo "$page names a test that does not exist: $name"; missing=1; }
done < <(grep '^|' "$page" | grep -oE '`[a-z0-9]+(_[a-z0-9]+){3,}`' | tr -d '`' | sort -u)
[ "$count" -gt 20 ] || { echo "$page: only $count names of tests were found"; exit 1; }
exit "$missing"
