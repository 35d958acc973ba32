#!/bin/bash
# Builds the program for small systems, static and without TLS, https, top and VPP: small.sh [x86_64|aarch64...]. It is
# target/TRIPLE/small/truepeer. Routers keep programs in a compressed file system: fails if it takes more than 4 MB in OpenWrt's squashfs
# (xz, blocks of 256 KiB). Minutes.
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
  ! grep -q aws-lc "$program" || { say "$program contains TLS"; exit 1; }
  packed=$(xz -9 --block-size=256KiB -T1 -c "$program" | wc -c)
  say "$program: $(stat -c %s "$program") bytes, $packed in a squashfs"
  [ "$packed" -le 4000000 ] || { say "more than 4 MB"; exit 1; }
done
