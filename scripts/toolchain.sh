#!/bin/bash
# Prints the name of the rustup toolchain to use if the pinned one is not available (offline, or rustup may not
# install): one of the same version under another name, or a newer one. Prints nothing if the pinned one works.
set -uo pipefail
. "$(dirname "$0")/lib.sh"

command -v rustup >/dev/null || exit 0
cargo --version >/dev/null 2>&1 && exit 0 # rustup installs the pinned toolchain here, if it may

pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
newer=
while read -r name _; do
  version=$(RUSTUP_TOOLCHAIN=$name rustc --version 2>/dev/null | awk '{ print $2 }')
  case $version in
    "$pinned") echo "$name"; exit 0 ;;
    '' | *-*) ;; # doesn't run, or is a nightly
    *) [ "$(printf '%s\n' "$pinned" "$version" | sort -V | head -1)" = "$pinned" ] && newer=$name ;;
  esac
done < <(rustup toolchain list)
[ -n "$newer" ] && echo "$newer"
exit 0
