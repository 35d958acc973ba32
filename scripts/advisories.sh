#!/bin/bash
# Compares the three lock files (workspace, agent, fuzz) with RustSec's advisory database: vulnerabilities, unsound, unmaintained
# and yanked crates, those of tests included.
#
#     scripts/advisories.sh                            # fetches the database; without the network it prints SKIP
#     TRUEPEER_ADVISORIES=DIR scripts/advisories.sh    # DIR is a clone of the database, also a bare one, with the branch main
set -euo pipefail
. "$(dirname "$0")/lib.sh"
url=https://github.com/RustSec/advisory-db
copies=target/advisory-dbs # as in both deny.toml

# cargo-deny accepts URLs with a host name only, and fetches with git. git reads the directory instead of the URL.
if [ -n "${TRUEPEER_ADVISORIES:-}" ]; then
  git -C "$TRUEPEER_ADVISORIES" rev-parse -q --verify 'main^{commit}' >/dev/null ||
    { echo "advisories: TRUEPEER_ADVISORIES=$TRUEPEER_ADVISORIES is no git repository with a branch main"; exit 1; }
  export GIT_CONFIG_COUNT=1 GIT_CONFIG_VALUE_0=$url
  GIT_CONFIG_KEY_0=url.file://$(realpath "$TRUEPEER_ADVISORIES").insteadOf
  export GIT_CONFIG_KEY_0
  rm -rf "$copies" # it may have newer commits, from which git would not go back
elif ! GIT_TERMINAL_PROMPT=0 timeout 20 git ls-remote -q --exit-code "$url" main >/dev/null 2>&1; then
  echo "SKIP advisories: their database needs the network (or TRUEPEER_ADVISORIES=DIR with a clone of it)"
  exit 0
fi

status=0
check() { # name, more options
  scripts/cargo-deny.sh "${@:2}" --log-level error check --hide-inclusion-graph advisories || { echo "advisories: see above for $1"; status=1; }
}
check workspace --config deny.toml
check agent --manifest-path crates/agent/Cargo.toml --config crates/agent/deny.toml
check fuzz --manifest-path fuzz/Cargo.toml --config deny.toml

# A database that was not read has no advisory against anything.
copy=$(find "$copies" -mindepth 1 -maxdepth 1 -type d -name 'advisory-db-*')
count=$(git -C "$copy" ls-tree -r --name-only HEAD crates | grep -c '/RUSTSEC-.*\.md$' || true)
echo "advisories: $count in the database, the newest of $(git -C "$copy" log -1 --format=%cs)"
[ "$count" -ge 500 ] || { echo "advisories: too few: the database is not whole"; status=1; }
exit "$status"
