#!/bin/bash
# Builds static programs for images: truepeer, with the library for glibc's programs in it, and truepeer-agent: static.sh
# DIRECTORY [MACHINE], x86_64 or aarch64. Needs clang and compilers for musl; installs the latter where it may. Many minutes.
set -euo pipefail
out=$(realpath -m "${1:?directory of the programs}")
. "$(dirname "$0")/lib.sh"
say() { echo "static: $*"; }
. scripts/cross.sh
machine=${2:-$host_machine} other=
case $machine in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; esac
[ "$machine" = "$host_machine" ] || other=$machine-unknown-linux-gnu
musl=$machine-unknown-linux-musl
export TRUEPEER_REQUIRE_LIBRARY=1 TRUEPEER_REQUIRE_CLANG=1

echo "static: the library of truepeer run"
cross_to "$machine-unknown-linux-gnu"
env "${cross[@]}" cargo check -q --locked --release -p truepeer ${other:+--target "$other"} # its build script makes the library
library=$(find "$target${other:+/$other}/release/build" -name libtruepeer_preload.so -path '*/preloaded/*' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)
echo "static: truepeer"
cross_to "$musl"
cross+=("RUSTFLAGS=${RUSTFLAGS:-} ${cross_flags[*]}")
env "${cross[@]}" TRUEPEER_LIBRARY="$library" cargo build -q --locked --release -p truepeer --target "$musl" "${cross_cargo[@]}"
echo "static: truepeer-agent"
env "${cross[@]}" cargo build -q --locked --release --manifest-path crates/agent/Cargo.toml --target-dir "$target" --target "$musl" "${cross_cargo[@]}"
mkdir -p "$out"
for program in truepeer truepeer-agent; do
  file=$target/$musl/release/$program
  ! readelf -l "$file" | grep -q INTERP || { echo "static: $program is not static"; exit 1; }
  "$cross_strip" --strip-all -o "$out/$program" "$file"
done
