#!/bin/bash
# Unpacks programs of a newer Debian with all their libraries, under target/servers/newer: this machine's release has older
# ones, which lack what some tests need. Needs no root. Does nothing if they are there already.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/debian-packages.sh
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

release=trixie
packages=(haproxy) # 3.0: set-proxy-v2-tlv-fmt
home=${TRUEPEER_SERVERS:-$PWD/target/servers}/newer
stamp="$release $(dpkg --print-architecture 2>/dev/null || true) ${packages[*]}"
say() { echo "newer: $*"; }

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  say "this machine has no apt-get: tests that need ${packages[*]} will be skipped"
  exit 0
fi
mkdir -p "$home"
exec 9>"$home/lock"
flock 9 # two test runs may start at the same time
if [ "$(cat "$home/stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

rm -rf "$home/debs" "$home/root"
if ! debian_packages "$home" "$release" "${packages[@]}"; then
  say "could not be downloaded: tests that need ${packages[*]} will be skipped"
  exit 0
fi
for deb in "$home"/debs/*.deb; do dpkg-deb -x "$deb" "$home/root"; done
rm -rf "$home/debs"
echo "$stamp" >"$home/stamp"
say "unpacked ${packages[*]} ($(du -sh "$home/root" | cut -f1)) under ${home#"$PWD"/}"
