#!/bin/bash
# Checks what package.sh has made: pages, units, lintian, and the .deb in a fresh Debian with a real systemd: installed, used,
# upgraded while clients are connected, purged. With --twice it first makes all packages again from a clone in another
# directory, and compares the digests. Needs root (debootstrap, namespaces); minutes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/debian.sh
out=$PWD/target/packages
say() { echo "package-check: $*"; }
fail() { say "$*"; exit 1; }
[ "$(id -u)" = 0 ] || { echo "SKIP package-check: needs root"; exit 77; }
deb=$(ls "$out"/truepeer_*_"$(dpkg --print-architecture)".deb) || fail "run make package first"
needs=()
for need in lintian:lintian debootstrap:debootstrap systemd-analyze:systemd groff:groff mandoc:mandoc zsh:zsh fish:fish rpm:rpm; do
  command -v "${need%:*}" >/dev/null || needs+=("${need#*:}")
done
[ ${#needs[@]} = 0 ] || apt_install "${needs[@]}"
PATH=$PATH:/usr/local/go/bin
if command -v go >/dev/null && [ ! -x target/tools/actionlint/actionlint ]; then
  GOBIN=$PWD/target/tools/actionlint go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7 || say "actionlint can't be fetched"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "${1:-}" = --twice ]; then
  [ -z "$(git status --porcelain)" ] || fail "--twice compares the packages of a commit: commit first"
  say "the same packages from a clone in another directory"
  again=$target/package-again/clone
  rm -rf "$again"
  git clone -q . "$again"
  mkdir "$again/target"
  ln -s "$PWD/target/tools" "$again/target/tools"
  (cd "$again" && env -u CARGO_TARGET_DIR scripts/package.sh) >"$target/logs/package-again.log" 2>&1 || fail "see target/logs/package-again.log"
  diff "$out/SHA256SUMS" "$again/target/packages/SHA256SUMS" || fail "the digests differ"
  rm -rf "$target/package-again"
fi

say "the files"
(cd "$out" && sha256sum --quiet -c SHA256SUMS)
mkdir "$work/deb" "$work/tar"
dpkg-deb -x "$deb" "$work/deb"
tar -C "$work/tar" --strip-components=1 -xf "$out"/truepeer-*-"$(uname -m)"-linux-musl.tar.gz
for binary in "$work"/{deb,tar}/usr/bin/truepeer; do
  if strings -n 6 "$binary" | grep -F -e "$PWD" -e "${CARGO_HOME:-$HOME/.cargo}" | head -3 | grep .; then fail "paths of this machine are in $binary"; fi
done
cmp <(cd "$work/deb" && find usr/bin usr/share/man -type f | sort) <(cd "$work/tar" && find usr/bin usr/share/man -type f | sort)
rpm -qlp "$out"/*."$(uname -m)".rpm >"$work/rpm-files"
grep -qx /usr/bin/truepeer "$work/rpm-files"
python3 -c 'import json, sys
names = {c["name"] for c in json.load(open(sys.argv[1]))["components"]}
sys.exit(0 if {"rustls", "aya", "clap"} <= names else f"no SBOM of truepeer: {len(names)} components")' "$out"/truepeer-[0-9]*-"$(uname -m)".cdx.json
scripts/package-lint.sh "$work/deb/usr/bin/truepeer"
lintian --allow-root --fail-on error,warning "$deb"

say "Debian"
root=$target/package-root
debian_root "$root"
dpkg --root="$root" --purge truepeer >/dev/null 2>&1 || true # of a run that failed
# Without what systemd itself leaves at its first start.
files() { (cd "$root" && find . -xdev \( -path ./var/log -o -path ./var/cache -o -path ./var/tmp -o -path './var/lib/dpkg/*-old' -o -path ./var/lib/systemd/timers -o -path ./var/lib/systemd/linger \) -prune -o -print | sort); }
files >"$work/before"
mkdir "$work/next"
cp "$deb" "$work/truepeer.deb"
# The next version: its configuration has changed as well.
dpkg-deb -R "$deb" "$work/next"
sed -i 's/^Version: .*/&+next/' "$work/next/DEBIAN/control"
echo '# A line of the next version.' >>"$work/next/etc/truepeer/truepeer.toml"
dpkg-deb --root-owner-group -b "$work/next" "$work/next.deb" >/dev/null
debian_boot "$root"
trap 'debian_end; rm -rf "$work"' EXIT
install_there() { debian_run dpkg -i --force-confold /dev/stdin <"$1"; }
# dpkg wants a file; /run there is in memory.
put() { debian_run sh -c "cat >/run/$2" <"$1"; }
put "$work/truepeer.deb" truepeer.deb
put "$work/next.deb" next.deb
debian_run ip rule >"$work/rules-before"

debian_run dpkg -i /run/truepeer.deb >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; exit 1; }
debian_run systemctl is-active -q truepeer && fail "the service runs without having been started"
debian_run systemctl enable -q --now truepeer truepeer-attach@web 2>"$work/enable.log" || true # no web.conf yet
debian_run systemctl is-active -q truepeer || { debian_run journalctl -u truepeer | tail; fail "the service does not start"; }
main_pid() { debian_run systemctl show -P MainPID truepeer; }
first=$(main_pid)

# Clients all the time, with headers of 192.0.2.7; one of them stays. The example passes connections on to port 443.
nsenter -t "$debian_pid" -n python3 scripts/package-clients.py "$work/stop" >"$work/clients" 2>&1 &
clients=$!
for _ in $(seq 100); do grep -qs '^connected' "$work/clients" && break; sleep .1; done
echo '# edited' >>"$root/etc/truepeer/truepeer.toml"
debian_run systemctl reload truepeer || fail "reload"
[ "$(main_pid)" = "$first" ] || fail "a reload started a new process"
debian_run dpkg -i --force-confold /run/next.deb >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; exit 1; }
sleep 1
[ "$(main_pid)" != "$first" ] || fail "the upgrade did not start the new program"
debian_run systemctl is-active -q truepeer || fail "the service does not run after the upgrade"
grep -q '^# edited' "$root/etc/truepeer/truepeer.toml" || fail "the upgrade replaced the configuration"
touch "$work/stop"
wait $clients || { cat "$work/clients"; debian_run journalctl -u truepeer | tail -20; fail "clients were cut"; }
say "$(tail -1 "$work/clients")"
debian_run journalctl -u truepeer -o json | python3 -c 'import json, sys
levels = {json.loads(line)["PRIORITY"] for line in sys.stdin}
sys.exit(0 if "6" in levels else f"no priorities in the journal: {levels}")'

debian_run dpkg -r truepeer >"$work/dpkg.log" 2>&1
grep -q '^# edited' "$root/etc/truepeer/truepeer.toml" || fail "removal took the configuration"
debian_run dpkg --purge truepeer >>"$work/dpkg.log" 2>&1
if debian_run systemctl is-active -q truepeer; then fail "the service runs after its removal"; fi
diff "$work/rules-before" <(debian_run ip rule) || fail "rules are left"
[ -z "$(debian_run dpkg -l 'truepeer*' 2>/dev/null | grep ^[a-z]i)" ]
debian_run sh -c 'ls -d /run/truepeer* 2>/dev/null' | grep -v '\.deb$' && fail "files are left in /run"
debian_end
trap 'rm -rf "$work"' EXIT
files >"$work/after"
diff "$work/before" "$work/after" || fail "purge leaves files"
say "installed, used, upgraded and purged: nothing is left"
