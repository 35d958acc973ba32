#!/bin/bash
# Unpacks the servers of servers.txt under target/servers without installing them: an installed server starts by
# itself and takes the user's ports. Needs no root. Does nothing if they are there already. Another list and directory
# can be named: servers.sh [LIST DIRECTORY].
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C DEBIAN_FRONTEND=noninteractive

list=${1:-scripts/servers.txt}
home=${2:-${TRUEPEER_SERVERS:-$PWD/target/servers}}
say() { echo "$(basename "$list" .txt): $*"; }

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  say "this machine has no apt-get: tests that need a server will be skipped"
  exit 0
fi

release=$(. /etc/os-release; echo "${ID:-linux} ${VERSION_ID:-}") # a new list, script or release: unpack again
stamp="$release $(dpkg --print-architecture) $(cat "$list" scripts/servers.sh | sha256sum | cut -d' ' -f1)"
if [ -f "$home/stamp" ] && [ "$(cat "$home/stamp")" = "$stamp" ]; then
  exit 0
fi

mkdir -p "$home/apt/lists/partial" "$home/apt/cache"
exec 9>"$home/lock"
flock 9 # two test runs may start at the same time
if [ -f "$home/stamp" ] && [ "$(cat "$home/stamp")" = "$stamp" ]; then exit 0; fi
rm -f "$home/stamp"

# apt's state for this machine's packages, kept and cached in separate directories.
options=(-q -o "Dir::Cache=$home/apt/cache" -o "Dir::Cache::archives=$home/debs" -o Debug::NoLocking=1
         -o APT::Sandbox::User= -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
private=(-o "Dir::State::lists=$home/apt/lists")

choose_packages() { # prints the packages to fetch; warns on stderr
  local names condition command name chosen
  while read -r names condition command; do
    [ -n "$names" ] && [[ $names != \#* ]] || continue
    [ "$condition" = unless ] && command -v "$command" >/dev/null && continue
    chosen=
    for name in ${names//|/ }; do
      if apt-cache "${options[@]}" show --no-all-versions "$name" >/dev/null 2>&1; then chosen=$name; break; fi
    done
    if [ -n "$chosen" ]; then echo "$chosen"
    else say "no package ${names//|/ or } in this machine's apt sources: its tests will be skipped" >&2; fi
  done <"$list"
}

download() {
  mapfile -t packages < <(choose_packages)
  [ ${#packages[@]} -gt 0 ] || return 1
  say "downloading (not installing): ${packages[*]}"
  apt-get "${options[@]}" -y --no-install-recommends --reinstall --download-only install "${packages[@]}" \
    >"$home/download.log" 2>&1
}

fresh_lists() {
  say "asking apt for the newest package lists (kept under ${home#"$PWD"/}, the machine's own stay as they are)"
  options+=("${private[@]}")
  apt-get "${options[@]}" update >"$home/update.log" 2>&1 || { tail -5 "$home/update.log" >&2; return 1; }
}

rm -rf "$home/debs" # packages of an older list would be unpacked as well
mkdir -p "$home/debs/partial"
if ! { ls /var/lib/apt/lists/*Packages* >/dev/null 2>&1 && download; }; then
  if ! { fresh_lists && download; }; then
    say "could not be downloaded: tests that need them will be skipped. The last lines of output:"
    tail -5 "$home/download.log" 2>/dev/null || true
    exit 0
  fi
fi

rm -rf "$home/root.new" "$home/bin.new"
mkdir -p "$home/root.new" "$home/bin.new"
for deb in "$home"/debs/*.deb; do dpkg-deb -x "$deb" "$home/root.new"; done
# Names that an installation would create with update-alternatives.
link() { if [ -e "$home/root.new/$2" ]; then ln -s "../root/$2" "$home/bin.new/$1"; fi; }
link nc bin/nc.openbsd
link nc usr/bin/nc.openbsd
for name in {ip,ip6}tables{,-nft,-save,-restore}; do link $name usr/sbin/xtables-nft-multi; done
# Erlang's launcher knows only its installed location.
erl=$home/root.new/usr/lib/erlang/bin/erl
if [ -f "$erl" ]; then sed -i 's|ROOTDIR=/usr/lib/erlang$|ROOTDIR=${ERL_ROOTDIR:-/usr/lib/erlang}|' "$erl"; fi
rm -rf "$home/root" "$home/bin"
mv "$home/root.new" "$home/root"
mv "$home/bin.new" "$home/bin"
find "$home/debs" -name '*.deb' -printf '%f\n' | sort >"$home/VERSIONS"
echo "$stamp" >"$home/stamp"
say "unpacked $(wc -l <"$home/VERSIONS") packages ($(du -sh "$home/root" | cut -f1)) under ${home#"$PWD"/}"
