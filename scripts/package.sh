#!/bin/bash
# Makes the packages under target/packages: a .deb, a tarball with a static binary, an .rpm, an SBOM, and SHA256SUMS. The same
# commit makes the same bytes, in any directory (scripts/package-check.sh compares them).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export LC_ALL=C TZ=UTC
umask 022
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
machine=$(uname -m)
out=$PWD/target/packages tools=$PWD/target/tools
stage=$target/release/package # [package.metadata.deb] in crates/truepeer/Cargo.toml names its files
tar_name=truepeer-$version-$machine-linux-musl
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
say() { echo "package: $*"; }

# A program of cargo, in one version, because another may write other bytes.
tool() { # name, version
  [ "$("$tools/bin/$1" "${1#cargo-}" --version 2>/dev/null | awk '{ print $NF }')" = "$2" ] && return
  say "building $1 $2 (once, minutes)"
  env -u CARGO_TARGET_DIR cargo install -q --locked --root "$tools" "$1@$2"
}

# Without paths of this machine, which differ from the next one's.
build() { # target, more arguments of env
  local cargo=${CARGO_HOME:-$HOME/.cargo} prefixes rust=
  prefixes=("$PWD=." "$target=target" "$cargo=cargo")
  rust=$(printf ' --remap-path-prefix=%s' "${prefixes[@]}")
  env RUSTFLAGS="${RUSTFLAGS:-}$rust" CFLAGS="$(printf ' -ffile-prefix-map=%s' "${prefixes[@]}")" TRUEPEER_REQUIRE_LIBRARY=1 \
    TRUEPEER_REQUIRE_CLANG=1 "${@:2}" cargo build -q --locked --release -p truepeer ${1:+--target "$1"}
}

# The .deb's files and scripts are listed in crates/truepeer/Cargo.toml; cargo-deb finds the libraries and writes what systemd's
# units need of the maintainer scripts.
deb() {
  say "building for glibc"
  build ''
  rm -rf "$stage"
  mkdir -p "$stage/man"
  strip --strip-all -o "$stage/truepeer" "$target/release/truepeer"
  "$stage/truepeer" man "$stage/man"
  gzip -9n "$stage"/man/*
  for shell in bash zsh fish; do "$stage/truepeer" completion $shell >"$stage/completion.$shell"; done
  gzip -9nc CHANGELOG.md >"$stage/changelog.gz"
  printf 'truepeer (%s-1) unstable; urgency=medium\n\n  * What has changed is in changelog.gz.\n\n -- The truepeer authors <>  %s\n' \
    "$version" "$(date -uRd "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$stage/changelog.Debian.gz"
  tool cargo-deb 3.8.0
  "$tools/bin/cargo-deb" deb --quiet --locked --no-build --no-strip -p truepeer -o "$out/" >/dev/null
}

# The .deb's files with a static binary in place of the other. It carries the library that `run` loads into glibc's programs.
tarball() {
  local musl=$machine-unknown-linux-musl library tree=$stage/$tar_name
  say "building for musl"
  library=$(find "$target/release/build" -name libtruepeer_preload.so -path '*/preloaded/*' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)
  add_rust_target "$musl"
  build "$musl" TRUEPEER_LIBRARY="$library" "CC_${musl//-/_}=musl-gcc"
  dpkg-deb -x "$out"/truepeer_*.deb "$tree"
  strip --strip-all -o "$tree/usr/bin/truepeer" "$target/$musl/release/truepeer"
  file "$tree/usr/bin/truepeer" | grep -Eq 'statically linked|static-pie' || { say "the binary is not static"; exit 1; }
  mv "$tree/usr/share/zsh/vendor-completions" "$tree/usr/share/zsh/site-functions"
  rm -r "$tree/usr/share/lintian" "$tree"/usr/share/doc/truepeer/{copyright,changelog*}
  install -m644 -t "$tree" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT
  tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$tar_name" |
    gzip -9n >"$out/$tar_name.tar.gz"
}

# From the tarball.
rpm_package() {
  sed -e "s/@VERSION@/${version//-/\~}/" -e "s/@TARBALL@/$tar_name/" deploy/rpm/truepeer.spec >"$out/truepeer.spec"
  rpmbuild -bb --quiet --target "$machine" --define "_topdir $stage/rpm" --define "_sourcedir $out" --define "_rpmdir $out" \
    --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" --define "_buildhost localhost" \
    --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" "$out/truepeer.spec"
}

# Every crate in the binary, as CycloneDX has it. cargo-cyclonedx writes a file beside each crate of the workspace.
sbom() {
  tool cargo-cyclonedx 0.5.9
  "$tools/bin/cargo-cyclonedx" cyclonedx -q --format json --spec-version 1.5 --override-filename truepeer.cdx --no-build-deps \
    --manifest-path crates/truepeer/Cargo.toml --target "$machine-unknown-linux-gnu"
  sed "s|$PWD/||g" crates/truepeer/truepeer.cdx.json >"$out/truepeer-$version.cdx.json"
  rm -f crates/*/truepeer.cdx.json bench/truepeer.cdx.json
}

missing=()
for need in musl-gcc:musl-tools rpmbuild:rpm file:file dpkg-deb:dpkg dpkg-shlibdeps:dpkg-dev; do
  command -v "${need%:*}" >/dev/null || missing+=("${need#*:}")
done
[ ${#missing[@]} = 0 ] || apt_install "${missing[@]}" || { say "missing: ${missing[*]}"; exit 1; }

rm -rf "$out"
mkdir -p "$out"
for part in deb tarball rpm_package sbom; do $part; done
(cd "$out" && sha256sum -- *.deb *.rpm *.spec *.json *.tar.gz >SHA256SUMS)
say "made:"
(cd "$out" && ls -l --time-style=+ | awk 'NR > 1 { printf "  %6.1f MB  %s\n", $5 / 1e6, $NF }')
