#!/bin/bash
# Installs what building and testing need beyond Rust, and prints it. Packages that only some tests need and that
# can't be installed (no root, no sudo) are listed; those tests are then skipped. For servers see servers.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

if ! command -v cargo >/dev/null; then
  echo "setup: Rust is missing: install it from rustup.rs, then run this again" >&2
  exit 1
fi

packages=()
want() { command -v "$1" >/dev/null || packages+=("$2"); } # command, package
want cc build-essential
want ip iproute2
want nft nftables
want curl curl
want unshare util-linux
want clang clang # the kernel programs of truepeer attach
want llvm-strip llvm
want ethtool ethtool
want busybox busybox # its awk, and gawk, beside the machine's own
want gawk gawk
[ -e /usr/include/bpf/bpf_helpers.h ] || packages+=(libbpf-dev)
[ -e /etc/protocols ] || packages+=(netbase) # for "ip rule … ipproto tcp"
[ "$(id -u)" = 0 ] || want newuidmap uidmap

if [ ${#packages[@]} -gt 0 ] && ! apt_install "${packages[@]}"; then
  echo "setup: missing, and can't be installed without root, sudo and apt: ${packages[*]}"
  for package in "${packages[@]}"; do
    case $package in
      build-essential) echo "setup: without a linker nothing can be built: install $package" >&2; exit 1 ;;
      clang | libbpf-dev) echo "setup: without $package truepeer is built without attach, and says so when attach is used" ;;
      llvm | ethtool | busybox | gawk) echo "setup: without $package the binary is larger, or a test is skipped or runs with fewer programs" ;;
      uidmap) echo "setup: without uidmap, tests that need several users are skipped" ;;
      netbase) echo "setup: without netbase, tests that give ip a protocol by name fail" ;;
      *) echo "setup: $package is unpacked privately instead, like the servers" ;;
    esac
  done
fi
