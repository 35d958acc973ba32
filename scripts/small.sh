#!/bin/bash
# Builds the program for small systems, static and without TLS, https, top and VPP: small.sh [x86_64|aarch64...]. Fails if it has more
# than 4 MB. It is target/TRIPLE/small/truepeer. Minutes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
say() { echo "small: $*"; }
. scripts/cross.sh
machines=("$@")
[ $# -gt 0 ] || machines=("$host_machine")
for machine in "${machines[@]}"; do
  triple=$machine-unknown-linux-musl
  cross_to "$triple"
  without_paths
  env "${portable[@]}" "${cross[@]}" TRUEPEER_REQUIRE_CLANG=1 \
    cargo build -q --locked --profile small --no-default-features -p truepeer --target "$triple" "${cross_cargo[@]}"
  program=$target/$triple/small/truepeer
  ! readelf -l "$program" | grep -q INTERP || { say "$program is not static"; exit 1; }
  size=$(stat -c %s "$program")
  say "$program: $size bytes"
  [ "$size" -le 4000000 ] || { say "more than 4 MB"; exit 1; }
done
