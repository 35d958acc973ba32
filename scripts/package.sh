#!/bin/bash
# Makes the packages under target/packages: a .deb, a tarball with a static binary, an .rpm if rpmbuild is there, an SBOM, and
# SHA256SUMS. Two runs at the same commit make the same bytes (scripts/package-check.sh compares them).
#
# TRUEPEER_PACKAGE_PROFILE=dev packages the binaries of `cargo build` instead: large and slow, to try the packages themselves.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export LC_ALL=C TZ=UTC
umask 022
profile=${TRUEPEER_PACKAGE_PROFILE:-release}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
version=${TRUEPEER_PACKAGE_VERSION:-$version}
machine=$(uname -m)
musl=$machine-unknown-linux-musl
out=$target/packages parts=$target/packages/parts
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
say() { echo "package: $*"; }

# Paths of this machine must not be in the binaries.
remap="--remap-path-prefix=$PWD=. --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
build() { # more arguments of cargo; prints nothing
  case $profile in
    dev) [ $# = 0 ] || return 1; cargo build -q --locked --workspace ;;
    *) RUSTFLAGS="${RUSTFLAGS:-} $remap" TRUEPEER_REQUIRE_LIBRARY=1 cargo build -q --locked --profile "$profile" -p truepeer "$@" ;;
  esac
}
built() { echo "$target/${1:+$1/}$([ "$profile" = dev ] && echo debug || echo "$profile")/truepeer"; }

rm -rf "$out"
mkdir -p "$parts/man"
say "building for glibc ($profile)"
build
install -m755 "$(built)" "$parts/truepeer"
strip --strip-all "$parts/truepeer"

say "pages and completions"
"$parts/truepeer" man "$parts/man"
for shell in bash zsh fish; do "$parts/truepeer" completion $shell >"$parts/completion.$shell"; done
gzip -9n "$parts"/man/*
gzip -9nc CHANGELOG.md >"$parts/changelog.gz"

# One tree of files for all packages.
tree() { # directory, binary
  local dir=$1 page
  install -Dm755 "$2" "$dir/usr/bin/truepeer"
  for page in "$parts"/man/*.1.gz; do install -Dm644 -t "$dir/usr/share/man/man1" "$page"; done
  for page in "$parts"/man/*.5.gz; do install -Dm644 -t "$dir/usr/share/man/man5" "$page"; done
  install -Dm644 "$parts/completion.bash" "$dir/usr/share/bash-completion/completions/truepeer"
  install -Dm644 "$parts/completion.zsh" "$dir/usr/share/zsh/$3/_truepeer"
  install -Dm644 "$parts/completion.fish" "$dir/usr/share/fish/vendor_completions.d/truepeer.fish"
  install -Dm644 -t "$dir/usr/lib/systemd/system" deploy/systemd/*
  install -Dm644 deploy/truepeer.toml "$dir/etc/truepeer/truepeer.toml"
}
# The same bytes for the same tree: names in order, no owner, one time.
archive() { tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$@"; }

. scripts/package-deb.sh
. scripts/package-tar.sh
. scripts/package-rpm.sh
. scripts/package-sbom.sh

(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\n' | sort | xargs sha256sum >SHA256SUMS)
say "made:"
(cd "$out" && ls -l --time-style=+ | awk 'NR > 1 && $1 ~ /^-/ { printf "  %6.1f MB  %s\n", $5 / 1e6, $NF }')
