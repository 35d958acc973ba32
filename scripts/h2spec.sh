#!/bin/bash
# Builds h2spec under target/tools/h2spec (once; needs Go), for the test of truepeer https against RFC 9113 and 7541.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export PATH="$PATH:/usr/local/go/bin"
home=$PWD/target/tools/h2spec
module=github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible

if [ -x "$home/h2spec" ]; then exit 0; fi
if ! command -v go >/dev/null; then
  echo "h2spec: Go is missing: the test that needs h2spec will be skipped"
  exit 0
fi
mkdir -p "$home"
echo "h2spec: building (once)"
GOBIN=$home go install -trimpath -ldflags '-s -w' "$module" ||
  echo "h2spec: can't fetch it: the test that needs it will be skipped"
