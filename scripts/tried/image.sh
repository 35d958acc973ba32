#!/bin/bash
# Compares the images of target/packages (scripts/image.py) with their SBOMs, as skopeo reads them: every file of each processor's image
# is named there with its digest, and nothing else. Then runs each image's program in a root of these files alone: image.sh [DIRECTORY
# OF PACKAGES]. Needs root and, for another processor, qemu-user-static.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
say() { echo "image: $*"; }
packages=$(realpath "${1:-target/packages}")
command -v skopeo >/dev/null || apt_install skopeo || { say "missing: skopeo"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seen=0
for image in "$packages"/truepeer-*-image.tar; do
  for pair in x86_64:amd64 aarch64:arm64; do
    machine=${pair%:*} name=$(basename "${image%-image.tar}")
    sbom=${image%.tar}-$machine.cdx.json
    [ -e "$sbom" ] || continue
    rm -rf "$work/image" "$work/root"
    skopeo copy -q --override-arch "${pair#*:}" "oci-archive:$image" "dir:$work/image"
    python3 -c 'import json, sys; print(*(layer["digest"].split(":")[1] for layer in json.load(open(sys.argv[1]))["layers"]))' "$work/image/manifest.json" >"$work/layers"
    mkdir "$work/root"
    for layer in $(cat "$work/layers"); do tar -C "$work/root" -xzf "$work/image/$layer"; done
    (cd "$work/root" && find . ! -type d -exec sha256sum {} + | sed 's| \./| /|' | sort) >"$work/files"
    python3 -c 'import json, sys
for one in json.load(open(sys.argv[1]))["components"]:
    if one["type"] == "file": print(one["hashes"][0]["content"] + "  " + one["name"])' "$sbom" | sort >"$work/named"
    diff "$work/named" "$work/files" || { say "FAILED: the SBOM of $name, $machine, differs"; exit 1; }
    crates=$(grep -c '"type": "library"' "$sbom") || { say "FAILED: the SBOM of $name, $machine, names no crate"; exit 1; }
    run=()
    [ "$machine" = "$(uname -m)" ] || { cp "$(command -v "qemu-$machine-static")" "$work/root/qemu"; run=(/qemu); }
    program=$(skopeo inspect --config --override-arch "${pair#*:}" --format '{{index .Config.Entrypoint 0}}' "oci-archive:$image")
    said=$(chroot "$work/root" "${run[@]}" "$program" --version)
    say "$name, $machine: $(wc -l <"$work/files") files, each in the SBOM, which names $crates crates; it runs: $said; $(skopeo inspect --override-arch "${pair#*:}" --format '{{.Digest}}' "oci-archive:$image")"
    seen=$((seen + 1))
  done
done
[ "$seen" -gt 0 ] || { say "FAILED: no image is in $packages"; exit 1; }
