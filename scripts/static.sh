#!/bin/bash
# Builds static programs for images: truepeer, with the library for glibc's programs in it, and truepeer-agent: static.sh
# DIRECTORY. Needs clang, the musl target of Rust and musl-gcc; installs the last two where it may. Many minutes.
set -euo pipefail
out=$(realpath -m "${1:?directory of the programs}")
. "$(dirname "$0")/lib.sh"
musl=$(uname -m)-unknown-linux-musl
export "CC_${musl//-/_}=musl-gcc" TRUEPEER_REQUIRE_LIBRARY=1 TRUEPEER_REQUIRE_CLANG=1

add_rust_target "$musl"
command -v musl-gcc >/dev/null || apt_install musl-tools || { echo "static: musl-gcc is missing: apt-get install musl-tools"; exit 1; }
echo "static: the library of truepeer run"
cargo check -q --locked --release -p truepeer # its build script makes the library
library=$(find "$target/release/build" -name libtruepeer_preload.so -path '*/preloaded/*' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)
echo "static: truepeer"
TRUEPEER_LIBRARY=$library cargo build -q --locked --release -p truepeer --target "$musl"
echo "static: truepeer-agent"
cargo build -q --locked --release --manifest-path crates/agent/Cargo.toml --target-dir "$target" --target "$musl"
mkdir -p "$out"
for program in truepeer truepeer-agent; do
  file=$target/$musl/release/$program
  ! readelf -l "$file" | grep -q INTERP || { echo "static: $program is not static"; exit 1; }
  strip --strip-all -o "$out/$program" "$file"
done
