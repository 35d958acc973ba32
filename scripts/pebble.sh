#!/bin/bash
# Builds Pebble, the ACME authority for tests by Let's Encrypt, and its server of names under target/tools/pebble. Needs Go; takes a
# minute, once.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export PATH="$PATH:/usr/local/go/bin"
home=$PWD/target/tools/pebble version=v2.10.3

if ! command -v go >/dev/null; then
  echo "pebble: Go is missing: the tests that need an ACME authority will be skipped"
  exit 0
fi
[ "$(cat "$home/version" 2>/dev/null)" != $version ] || exit 0
mkdir -p "$home"
echo "pebble: building $version (once)"
for program in pebble pebble-challtestsrv; do
  GOBIN=$home CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' "github.com/letsencrypt/pebble/v2/cmd/$program@$version" || {
    echo "pebble: can't build $program: the tests that need an ACME authority will be skipped"
    exit 0
  }
done
echo $version >"$home/version"
