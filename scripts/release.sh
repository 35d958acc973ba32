#!/bin/bash
# Makes a release under target/packages: release.sh VERSION [MACHINE...], by default for x86_64 and aarch64. All packages and images
# (package.sh), notes.md, provenance.json (provenance.py), and SHA256SUMS of all. The same commit makes the same bytes. Keys, if given:
#   RELEASE_KEY=you@example.org        gpg's name of the key that signs SHA256SUMS
#   COSIGN_KEY=FILE                    an EC key (PEM) that signs the images as cosign does: IMAGE.payload.json and IMAGE.sig
#   REPOSITORY_KEY=, REPOSITORY_URL=   also makes target/repository (repository.sh)
# RELEASE_PARTS makes some parts only, and leaves the others as they are: the parts of package.sh, and finish. Many minutes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export LC_ALL=C TZ=UTC
umask 022
say() { echo "release: $*"; }
version=${1:?the version: make release VERSION=1.2.3}
shift
machines=("$@")
[ $# -gt 0 ] || machines=(x86_64 aarch64)
out=$PWD/target/packages
wrong=()
for file in Cargo.toml crates/agent/Cargo.toml deploy/arch/PKGBUILD deploy/helm/truepeer/Chart.yaml; do
  grep -Eqx "(version = |pkgver=|appVersion: )\"?${version//./\\.}\"?" "$file" || wrong+=("$file")
done
[ ${#wrong[@]} = 0 ] || { say "not of version $version: ${wrong[*]}. Change them and commit"; exit 1; }
[ -z "$(git status --porcelain)" ] || { say "a release is made of a commit: commit first"; exit 1; }
parts=${RELEASE_PARTS:-deb tarball rpm_package sbom agent small images finish}
[ -n "${RELEASE_PARTS-}" ] || rm -rf "$out"
[ "${parts/finish/}" = "" ] || PACKAGE_PARTS=${parts/finish/} scripts/package.sh "${machines[@]}"
case " $parts " in *" finish "*) ;; *) exit 0 ;; esac

rm -f "$out"/{notes.md,provenance.json,*.asc,*.sig,*.payload.json}
scripts/release-notes.sh "v$version" >"$out/notes.md"
(cd "$out" && sha256sum -- *.deb *.rpm *.json *.tar *.tar.gz >SHA256SUMS)
scripts/provenance.py "$version" "$(git rev-parse HEAD)" "${machines[@]}" >"$out/provenance.json"
(cd "$out" && rm -f -- *.spec && sha256sum notes.md provenance.json >>SHA256SUMS)

# The digest of an image's index, as a registry shows it.
digest_of() { tar -xOf "$1" index.json | python3 -c 'import json, sys; print(json.load(sys.stdin)["manifests"][0]["digest"])'; }
if [ -n "${COSIGN_KEY-}" ]; then
  for image in "$out"/*-image.tar; do
    name=${image%.tar}
    printf '{"critical":{"identity":{"docker-reference":"%s"},"image":{"docker-manifest-digest":"%s"},"type":"cosign container image signature"},"optional":null}' \
      "$(basename "${name%-"$version"-image}")" "$(digest_of "$image")" >"$name.payload.json"
    openssl dgst -sha256 -sign "$COSIGN_KEY" "$name.payload.json" | base64 -w0 >"$name.sig"
  done
  openssl pkey -in "$COSIGN_KEY" -pubout -out "$out/cosign.pub"
fi
[ -z "${RELEASE_KEY-}" ] || gpg --batch --yes --quiet --local-user "$RELEASE_KEY" --armor --detach-sign -o "$out/SHA256SUMS.asc" "$out/SHA256SUMS"
[ -z "${REPOSITORY_KEY-}" ] || scripts/repository.sh
(cd "$out" && sha256sum --quiet -c SHA256SUMS)
say "$version: $(wc -l <"$out/SHA256SUMS") files; SHA256SUMS itself is $(sha256sum <"$out/SHA256SUMS" | cut -c1-16)…"
