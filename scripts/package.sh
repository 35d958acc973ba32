#!/bin/bash
# Makes the packages under target/packages: a .deb, a tarball with a static binary, an .rpm, an SBOM, and SHA256SUMS. The same
# commit makes the same bytes, in any directory (scripts/package-check.sh compares them). For this processor, or for those that
# are named: package.sh x86_64 aarch64. PACKAGE_PARTS chooses some of: deb tarball rpm_package sbom agent small images. Without it all
# but agent and small are made.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export LC_ALL=C TZ=UTC
umask 022
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
out=$PWD/target/packages tools=$PWD/target/tools
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
say() { echo "package: $*"; }
. scripts/cross.sh

# A program of cargo, in one version, because another may write other bytes.
tool() { # name, version
  [ "$("$tools/bin/$1" "${1#cargo-}" --version 2>/dev/null | awk '{ print $NF }')" = "$2" ] && return
  say "building $1 $2 (once, minutes)"
  env -u CARGO_TARGET_DIR cargo install -q --locked --root "$tools" "$1@$2"
}

build() { # triple, or '' for this machine's; more arguments of env
  without_paths
  env TRUEPEER_REQUIRE_LIBRARY=1 TRUEPEER_REQUIRE_CLANG=1 "${portable[@]}" "${cross[@]}" "${@:2}" \
    cargo build -q --locked --release -p truepeer ${1:+--target "$1"} "${cross_cargo[@]}"
}

# The newest version of glibc that a binary names.
glibc_of() { readelf -V "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -1; }

# The .deb's files and scripts are listed in crates/truepeer/Cargo.toml; cargo-deb finds the libraries and writes what systemd's
# units need of the maintainer scripts.
deb() {
  say "building for glibc, $machine"
  cross_to "$machine-unknown-linux-gnu"
  build "$other"
  rm -rf "$stage"
  mkdir -p "$stage/man"
  "$cross_strip" --strip-all -o "$stage/truepeer" "$built/truepeer"
  "${cross_run[@]}" "$stage/truepeer" man "$stage/man"
  gzip -9n "$stage"/man/*
  for shell in bash zsh fish; do "${cross_run[@]}" "$stage/truepeer" completion $shell >"$stage/completion.$shell"; done
  gzip -9nc CHANGELOG.md >"$stage/changelog.gz"
  printf 'truepeer (%s-1) unstable; urgency=medium\n\n  * What has changed is in changelog.gz.\n\n -- The truepeer authors <>  %s\n' \
    "$version" "$(date -uRd "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$stage/changelog.Debian.gz"
  if [ -n "$other" ] && [ "$(glibc_of "$built/truepeer")" != 2.34 ]; then say "the binary needs another glibc than variants.cross says"; exit 1; fi
  tool cargo-deb 3.8.0
  "$tools/bin/cargo-deb" deb --quiet --locked --no-build --no-strip -p truepeer ${other:+--target "$other" --variant cross} -o "$out/" >/dev/null
}

# The .deb's files with a static binary in place of the other. It carries the library that `run` loads into glibc's programs.
tarball() {
  local musl=$machine-unknown-linux-musl library tree=$stage/$tar_name
  say "building for musl, $machine"
  library=$(find "$built/build" -name libtruepeer_preload.so -path '*/preloaded/*' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)
  cross_to "$musl"
  build "$musl" TRUEPEER_LIBRARY="$library"
  dpkg-deb -x "$out"/truepeer_*_"$(debian_name "$machine")".deb "$tree"
  "$cross_strip" --strip-all -o "$tree/usr/bin/truepeer" "$target/$musl/release/truepeer"
  file "$tree/usr/bin/truepeer" | grep -Eq 'statically linked|static-pie' || { say "the binary is not static"; exit 1; }
  mv "$tree/usr/share/zsh/vendor-completions" "$tree/usr/share/zsh/site-functions"
  rm -r "$tree/usr/share/lintian" "$tree"/usr/share/doc/truepeer/{copyright,changelog*}
  install -m644 -t "$tree" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT
  pack "$tree"
}

# From the tarball.
rpm_package() {
  sed -e "s/@VERSION@/${version//-/\~}/" -e "s/@TARBALL@/$tar_name/" deploy/rpm/truepeer.spec >"$out/truepeer.spec"
  rpmbuild -bb --quiet --target "$machine" --define "_topdir $stage/rpm" --define "_sourcedir $out" --define "_rpmdir $out" \
    --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" --define "_buildhost localhost" \
    --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" "$out/truepeer.spec"
}

# Every crate in the binary, as CycloneDX has it. cargo-cyclonedx writes a file beside each crate of the workspace.
sbom() { bill_of truepeer truepeer; }
bill_of() { # crate, package, more arguments
  tool cargo-cyclonedx 0.5.9
  "$tools/bin/cargo-cyclonedx" cyclonedx -q --format json --spec-version 1.5 --override-filename truepeer.cdx --no-build-deps \
    --manifest-path "crates/$1/Cargo.toml" --target "$machine-unknown-linux-gnu" "${@:3}"
  sed "s|$PWD/||g" "crates/$1/truepeer.cdx.json" >"$out/$2-$version-$machine.cdx.json"
  rm -f crates/*/truepeer.cdx.json bench/truepeer.cdx.json
}

# The static truepeer-agent, for its image.
agent() {
  local musl=$machine-unknown-linux-musl tree=$stage/truepeer-agent-$version-$machine-linux-musl
  say "building the agent, $machine"
  cross_to "$musl"
  without_paths
  env "${portable[@]}" "${cross[@]}" cargo build -q --locked --release --manifest-path crates/agent/Cargo.toml --target-dir "$target" \
    --target "$musl" "${cross_cargo[@]}"
  rm -rf "$tree"
  mkdir -p "$tree/usr/bin"
  "$cross_strip" --strip-all -o "$tree/usr/bin/truepeer-agent" "$target/$musl/release/truepeer-agent"
  install -m644 -t "$tree" LICENSE-APACHE LICENSE-MIT
  pack "$tree"
  bill_of agent truepeer-agent
}

# The program for routers, with what procd needs.
small() {
  local tree=$stage/truepeer-small-$version-$machine-linux-musl
  scripts/small.sh "$machine"
  rm -rf "$tree"
  install -D "$target/$machine-unknown-linux-musl/small/truepeer" "$tree/usr/bin/truepeer"
  install -D deploy/openwrt/truepeer "$tree/etc/init.d/truepeer"
  install -Dm644 deploy/truepeer.toml "$tree/etc/truepeer/truepeer.toml"
  install -m644 -t "$tree" LICENSE-APACHE LICENSE-MIT
  pack "$tree"
  bill_of truepeer truepeer-small --no-default-features
}

pack() { # directory
  tar -C "$(dirname "$1")" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$(basename "$1")" |
    gzip -9n >"$out/$(basename "$1").tar.gz"
}

missing=()
for need in rpmbuild:rpm file:file dpkg-deb:dpkg dpkg-shlibdeps:dpkg-dev; do
  command -v "${need%:*}" >/dev/null || missing+=("${need#*:}")
done
[ ${#missing[@]} = 0 ] || apt_install "${missing[@]}" || { say "missing: ${missing[*]}"; exit 1; }

[ -n "${PACKAGE_PARTS-}" ] || rm -rf "$out"
mkdir -p "$out"
machines=("$@") parts=${PACKAGE_PARTS:-deb tarball rpm_package sbom images}
[ $# -gt 0 ] || machines=("$host_machine")
for machine in "${machines[@]}"; do
  other=
  [ "$machine" = "$host_machine" ] || other=$machine-unknown-linux-gnu
  built=$target${other:+/$other}/release
  stage=$built/package # [package.metadata.deb] in crates/truepeer/Cargo.toml names its files
  tar_name=truepeer-$version-$machine-linux-musl
  for part in ${parts//images/}; do $part; done
done
# One image for all of them.
case " $parts " in *" images "*) scripts/image.py "$out" ;; esac
# Without some parts some kinds are missing.
(cd "$out" && shopt -s nullglob && sha256sum -- *.deb *.rpm *.spec *.json *.tar *.tar.gz >SHA256SUMS)
say "made:"
(cd "$out" && ls -l --time-style=+ | awk 'NR > 1 { printf "  %6.1f MB  %s\n", $5 / 1e6, $NF }')
