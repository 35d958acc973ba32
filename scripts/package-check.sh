#!/bin/bash
# Checks what package.sh has made: units, lintian, and the .deb in a fresh Debian: installed, used, upgraded, purged. With --twice
# it makes all packages a second time and compares their digests. Needs root (debootstrap, chroot); minutes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
out=$target/packages
deb=$(ls "$out"/truepeer_*.deb)
say() { echo "package-check: $*"; }
[ "$(id -u)" = 0 ] || { say "needs root"; exit 77; }
for tool in lintian:lintian debootstrap:debootstrap systemd-analyze:systemd man:man-db; do
  command -v "${tool%:*}" >/dev/null || apt_install "${tool#*:}"
done

say "units: exposure at most 2.0 (truepeer), 3.0 (attach, which loads kernel programs as root)"
units=$(mktemp -d)
trap 'rm -rf "$units"' EXIT
cp deploy/systemd/* "$units"
mv "$units/truepeer-attach@.service" "$units/truepeer-attach@web.service"
for unit in truepeer.service:20 truepeer-attach@web.service:30; do
  systemd-analyze security --offline=true --threshold="${unit#*:}" --no-pager "$units/${unit%:*}" | tail -1
done

say "man pages without warnings"
for page in "$out"/parts/man/*.gz; do
  said=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
  [ -z "$said" ] || { say "$page: $said"; exit 1; }
done

say "lintian"
lintian --fail-on error,warning "$deb"

if [ "${1:-}" = --twice ]; then
  say "a second build, for the same digests"
  cp "$out/SHA256SUMS" "$units/first"
  mv "$target/release" "$target/release.first"
  scripts/package.sh >/dev/null
  rm -rf "$target/release.first"
  diff "$units/first" "$out/SHA256SUMS"
fi

root=$target/package-root
if [ ! -e "$root/etc/debian_version" ]; then
  say "debootstrap"
  rm -rf "$root"
  release=$(. /etc/os-release; echo "$VERSION_CODENAME")
  mirror=$(awk '$1 == "deb" { print $2; exit } $1 == "URIs:" { print $2; exit }' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null)
  debootstrap --variant=minbase "$release" "$root" "$mirror" >"$target/logs/debootstrap.log" 2>&1
fi
# Everything in its own mounts and processes.
unshare --mount --pid --fork --net --mount-proc bash -s "$root" "$deb" <<'END'
set -euo pipefail
root=$1 deb=$2
inside() { chroot "$root" env LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
ip link set lo up
files() { (cd "$root" && find . -xdev \( -path ./var/log -o -path ./var/lib/dpkg -o -path ./var/cache \) -prune -o -print | sort); }
inside dpkg --purge truepeer >/dev/null 2>&1 || true
files >"$root/../package-before"

cp "$deb" "$root/tmp/truepeer.deb"
# A next version with the same contents.
mkdir "$root/tmp/next"
dpkg-deb -R "$deb" "$root/tmp/next"
sed -i 's/^Version: .*/&+next/' "$root/tmp/next/DEBIAN/control"
dpkg-deb --root-owner-group -b "$root/tmp/next" "$root/tmp/next.deb" >/dev/null

inside dpkg -i /tmp/truepeer.deb >/dev/null
inside truepeer --version
inside truepeer check -c /etc/truepeer/truepeer.toml
# As a service would: a proxy that answers.
cat >"$root/tmp/truepeer.toml" <<'TOML'
[admin]
listen = ["/run/truepeer.sock"]
[[proxy]]
listen = ["127.0.0.1:8443"]
ipv4 = "127.0.0.1:9000"
ipv6 = "[::1]:9000"
TOML
inside truepeer serve -c /tmp/truepeer.toml 2>/tmp/serve.log &
serve=$!
for _ in $(seq 100); do ss -Hltn 'sport = :8443' | grep -q . && break; sleep .1; done
ss -Hltn 'sport = :8443' | grep -q . || { cat /tmp/serve.log; exit 1; }
kill $serve; wait $serve || true

echo '# edited' >>"$root/etc/truepeer/truepeer.toml"
inside dpkg -i --force-confdef --force-confold /tmp/next.deb >/dev/null
grep -q '^# edited' "$root/etc/truepeer/truepeer.toml"
inside dpkg -s truepeer | grep '^Version: .*+next'
inside dpkg -r truepeer >/dev/null
grep -q '^# edited' "$root/etc/truepeer/truepeer.toml"
inside dpkg --purge truepeer >/dev/null
files >"$root/../package-after"
diff "$root/../package-before" "$root/../package-after" && echo "purge leaves nothing"
END
say "all passed"
