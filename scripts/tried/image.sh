#!/bin/bash
# Compares the image of target/packages (scripts/image.py) with its SBOMs, as skopeo reads it: every file of each processor's image is
# named there with its digest, and nothing else. Then runs each program in a root of these files alone: image.sh [DIRECTORY OF PACKAGES].
# Needs root and, for another processor, qemu-user-static.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
say() { echo "image: $*"; }
packages=$(realpath "${1:-target/packages}")
image=$(ls "$packages"/truepeer-*-image.tar | tail -1)
command -v skopeo >/dev/null || apt_install skopeo || { say "missing: skopeo"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for pair in x86_64:amd64 aarch64:arm64; do
  machine=${pair%:*}
  sbom=${image%.tar}-$machine.cdx.json
  [ -e "$sbom" ] || continue
  skopeo copy -q --override-arch "${pair#*:}" "oci-archive:$image" "dir:$work/$machine"
  python3 -c 'import json, sys; print(*(layer["digest"].split(":")[1] for layer in json.load(open(sys.argv[1]))["layers"]))' "$work/$machine/manifest.json" >"$work/layers"
  mkdir "$work/root"
  for layer in $(cat "$work/layers"); do tar -C "$work/root" -xzf "$work/$machine/$layer"; done
  (cd "$work/root" && find . ! -type d -exec sha256sum {} + | sed 's| \./| /|' | sort) >"$work/files"
  python3 -c 'import json, sys
for one in json.load(open(sys.argv[1]))["components"]:
    if one["type"] == "file": print(one["hashes"][0]["content"] + "  " + one["name"])' "$sbom" | sort >"$work/named"
  diff "$work/named" "$work/files" || { say "FAILED: the SBOM of $machine differs"; exit 1; }
  run=()
  [ "$machine" = "$(uname -m)" ] || { cp "$(command -v "qemu-$machine-static")" "$work/root/qemu"; run=(/qemu); }
  said=$(chroot "$work/root" "${run[@]}" /usr/bin/truepeer --version)
  say "$machine: $(wc -l <"$work/files") files, each in the SBOM; it runs: $said; $(skopeo inspect --override-arch "${pair#*:}" --format '{{.Digest}}' "oci-archive:$image")"
  rm -rf "$work/root"
done
