#!/bin/bash
# Prints the name of the rustup toolchain to use instead of the pinned one, where that can't be had (offline, or
# rustup may not install): one of the same version under another name, else a newer one. Prints nothing where
# the pinned one works.
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
    '' | *-*) ;; # does not run, or is a nightly
    *) [ "$(printf '%s\n' "$pinned" "$version" | sort -V | head -1)" = "$pinned" ] && newer=$name ;;
  esac
done < <(rustup toolchain list)
[ -n "$newer" ] && echo "$newer"
exit 0
