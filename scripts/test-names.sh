#!/bin/bash
# Whether every test of scripts/test-names.txt still exists, and whether the list has all. A name is kept without its
# module and crate, so a test may move.
#
#   scripts/test-names.sh           compare; exit 1 with what differs
#   scripts/test-names.sh --write   write the list anew, and say in the commit why a name went
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export LC_ALL=C
list=scripts/test-names.txt
names=$(mktemp)
trap 'rm -f "$names" "$names.diff"' EXIT
# The long tests are listed as well, and as plain ones.
list_tests() { cargo test -q "$@" -- --list --format terse; }
{ list_tests --workspace --lib --bins --tests; list_tests --bins --tests --manifest-path crates/agent/Cargo.toml --target-dir "$target"; } | sed -n 's/^\(.*::\)\{0,1\}\(.*[^ ]\): test$/\2/p' | sort >"$names"
if [ "${1-}" = --write ]; then cp "$names" "$list"; exit; fi
if diff "$list" "$names" >"$names.diff"; then echo "$(wc -l <"$names") tests, as in $list"; exit; fi
sed -n -e 's/^< /vanished: /p' -e 's/^> /not in the list: /p' "$names.diff"
echo "if that is meant: scripts/test-names.sh --write, and say in the commit why a test went" >&2
exit 1
