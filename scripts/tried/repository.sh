#!/bin/bash
# Installs truepeer from target/repository (scripts/repository.sh, with REPOSITORY_URL=http://127.0.0.1) as the page of packages says,
# uses it in each way (use.py), and removes it: what is left then fails. repository.sh [apt:RELEASE...] [rpm] [arch]; by default
# apt:bookworm apt:trixie rpm. In a Debian with a systemd as process 1, and in a root that has rpm's database, a shell and nothing
# else, filled by Debian's dnf. `arch` is deploy/arch, built by makepkg (or the package that ARCH_PACKAGE names), and Debian's pacman in
# the first of these. Needs root; minutes, more the first time, and a release build for `arch`.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
. scripts/debian.sh
. scripts/debian-packages.sh
. scripts/tried/shell-package.sh
say() { echo "tried: $*"; }
repository=$PWD/target/repository
[ -e "$repository/truepeer.asc" ] || [ "$*" = arch ] || { say "make repository first"; exit 1; }
[ "$(id -u)" = 0 ] || { echo "SKIP tried: needs root"; exit 77; }
mkdir -p "$target/logs"
# HAProxy of `make servers`, for the root without one.
servers=$target/servers/root
export HAPROXY="${HAPROXY:-env LD_LIBRARY_PATH=$servers/usr/lib/$(uname -m)-linux-gnu:$servers/lib/$(uname -m)-linux-gnu $servers/usr/sbin/haproxy}"
failures=0
outcome() { if [ "$2" = 0 ]; then say "$1: ok"; else say "FAILED $1"; failures=$((failures + 1)); fi; } # name, status
# The shell lines that the page has under a heading.
lines_of() { awk -v heading="### $1" '$0 == heading { on = 1 } on && /^```$/ { exit } block { print } on && /^```shell$/ { block = 1 }' docs/packages.md |
  sed 's|https://example.org/truepeer|http://127.0.0.1|g'; }
left() { # directory; without what systemd itself leaves at its first start
  (cd "$1" && find . -xdev \( -path ./var/log -o -path ./var/cache -o -path ./var/tmp -o -path ./tmp -o -path ./run -o -path ./proc -o -path ./sys -o -path ./dev -o -path './var/lib/dpkg/*-old' \
    -o -path ./var/lib/apt -o -path ./var/lib/systemd -o -name .updated -o -path ./var/lib/dnf -o -path ./var/lib/rpm -o -path '*/__pycache__' \) -prune -o -print | sort)
}

apt_root() { # directory, release
  debian_root "$1" "$2"
  [ ! -e "$1/usr/sbin/haproxy" ] || return 0
  cp /etc/resolv.conf "$1/etc/"
  printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d"
  chmod 755 "$1/usr/sbin/policy-rc.d"
  chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive sh -c \
    "apt-get update -q && apt-get install -qy --no-install-recommends haproxy curl ca-certificates libpython3-stdlib sudo" >"$target/logs/tried-apt.log" 2>&1
  rm -f "$1"/etc/systemd/system/multi-user.target.wants/haproxy.service "$1/usr/sbin/policy-rc.d" "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1/etc/resolv.conf"
}

distribution() { (. "$1/etc/os-release"; echo "Debian $VERSION_ID, $(chroot "$1" systemctl --version | awk '{ print $1, $2; exit }')"); } # root

try_apt() { # release
  local root=$target/tried-$1 log=$target/logs/tried-$1.log web status=0
  apt_root "$root" "$1" || { tail -3 "$target/logs/tried-apt.log"; return 1; }
  mkdir -p "$root/etc/apt/keyrings"
  left "$root" >"$log.before"
  debian_name=tried debian_boot "$root" || return 1
  nsenter -t "$debian_pid" -n python3 -m http.server 80 --bind 127.0.0.1 --directory "$repository" >/dev/null 2>&1 &
  web=$!
  for _ in $(seq 100); do debian_run curl -fs -o /dev/null http://127.0.0.1/truepeer.asc && break; sleep .1; done
  cp scripts/tried/use.py "$root/use.py"
  {
    debian_run sh -ec "$(lines_of 'Debian and Ubuntu' | sed 's/apt install/apt install -y/')" &&
      # attach needs the root of the cgroups.
      debian_run unshare --mount sh -c 'mount --bind /run/cgroup-of-host /sys/fs/cgroup && exec python3 /use.py --where "$1"' sh "$(distribution "$root"),apt repository over HTTP" &&
      debian_run systemctl start truepeer && debian_run systemctl is-active truepeer &&
      debian_run apt-get purge -y truepeer
  } >"$log" 2>&1 || status=1
  debian_run sh -c 'rm -f /etc/apt/sources.list.d/truepeer.list /etc/apt/keyrings/truepeer.asc /use.py; ip rule' >"$log.rules"
  [ "$(grep -vc -e 'lookup local' -e 'lookup main' -e 'lookup default' "$log.rules")" = 0 ] || status=1
  debian_end
  kill $web 2>/dev/null || true
  left "$root" >"$log.after"
  diff "$log.before" "$log.after" >>"$log" || status=1
  [ "$status" = 0 ] || grep -e FAILED -e '^[<>E]' "$log" | head -5
  return "$status"
}

try_rpm() {
  local root=$target/tried-rpm log=$target/logs/tried-rpm.log status=0
  for need in dnf:dnf createrepo_c:createrepo-c rpmbuild:rpm; do command -v "${need%:*}" >/dev/null || apt_install "${need#*:}"; done
  rm -rf "$root" "$root".shell
  shell_package "$root.shell"
  mkdir -p "$root"/{etc/yum.repos.d,proc,sys,dev,tmp,run}
  printf '[shell]\nname=shell\nbaseurl=file://%s\ngpgcheck=0\n' "$root.shell" >"$root/etc/yum.repos.d/shell.repo"
  unshare --net --mount --propagation private bash -ec '
    scripts/new-network.sh tried
    scripts/tried/own-mounts.sh
    root=$1 repository=$2 log=$3 lines=$4
    ip link set lo up
    python3 -m http.server 80 --bind 127.0.0.1 --directory "$repository" >/dev/null 2>&1 &
    web=$!
    trap "kill $web" EXIT
    dnf() { command dnf -y --releasever=1 --installroot="$root" --setopt=reposdir="$root/etc/yum.repos.d" "$@"; }
    sudo() { if [ "$1" = curl ]; then curl "${@:2:1}" "$root${@:3:1}" "${@:4}"; else "$@"; fi; }
    dnf install shell
    for _ in $(seq 50); do curl -fs http://127.0.0.1/truepeer.asc >/dev/null && break; sleep .1; done
    find "$root" -xdev | grep -v -e /var -e /tmp | sort >"$log.before"
    eval "$lines"
    for place in proc sys dev tmp; do mount --rbind "/$place" "$root/$place"; done
    mount -t tmpfs tmpfs "$root/run" # the package removes /run/truepeer
    python3 scripts/tried/use.py --where "a root filled by dnf 4.14,rpm repository over HTTP" --only attach,attach-udp,proxy,splice,udp,https chroot "$root" /usr/bin/truepeer
    dnf remove truepeer
    pins=$(find /sys/fs/bpf -mindepth 1 ! -name "*.debug")
    [ -z "$pins" ] || { echo "$pins"; exit 1; }
    umount -Rl "$root"/{proc,sys,dev,run,tmp}
    rm -f "$root/etc/yum.repos.d/truepeer.repo"
    find "$root" -xdev | grep -v -e /var -e /tmp | sort >"$log.after"
    diff "$log.before" "$log.after"
  ' bash "$root" "$repository" "$log" "$(lines_of 'Fedora and RHEL')" >"$log" 2>&1 || status=1
  [ "$status" = 0 ] || tail -5 "$log"
  return "$status"
}

# makepkg refuses root, so it is another user in a user namespace. Debian has no packages of Arch's that it could depend on.
try_arch() {
  local root=$target/tried-bookworm log=$target/logs/tried-arch.log package=${ARCH_PACKAGE-} work=$target/tried-arch status=0
  for need in makepkg:makepkg pacman:pacman-package-manager fakeroot:fakeroot bsdtar:libarchive-tools; do command -v "${need%:*}" >/dev/null || apt_install "${need#*:}"; done
  apt_root "$root" bookworm || { tail -3 "$target/logs/tried-apt.log"; return 1; }
  if [ -z "$package" ]; then
    rm -rf "$work"
    mkdir -p "$work"
    (cd deploy/arch && BUILDDIR=$work PKGDEST=$work unshare --user --map-user=1000 --map-group=1000 makepkg --nodeps --clean) >"$log" 2>&1 || { tail -5 "$log"; return 1; }
    package=$(ls "$work"/*.pkg.*)
  fi
  mkdir -p "$root/var/lib/pacman"
  left "$root" >"$log.before"
  pacman() { command pacman --noconfirm --root "$root" --dbpath "$root/var/lib/pacman" --cachedir "$work/cache" --hookdir "$work/none" "$@"; }
  {
    pacman -Udd "$package" && debian_name=tried debian_boot "$root" || status=1
    cp scripts/tried/use.py "$root/use.py"
    debian_run unshare --mount sh -c 'mount --bind /run/cgroup-of-host /sys/fs/cgroup && exec python3 /use.py --where "$1"' sh "$(distribution "$root"),pacman" &&
      debian_run systemctl start truepeer && debian_run systemctl is-active truepeer && debian_run systemctl stop truepeer || status=1
    debian_end
    pacman -Rn truepeer || status=1
  } >>"$log" 2>&1
  rm -f "$root/use.py"
  left "$root" >"$log.after"
  diff <(grep -v ^./var/lib/pacman "$log.before") <(grep -v ^./var/lib/pacman "$log.after") >>"$log" || status=1
  [ "$status" = 0 ] || grep -e FAILED -e '^[<>E]' "$log" | head -5
  return "$status"
}

words=("$@")
[ $# -gt 0 ] || words=(apt:bookworm apt:trixie rpm)
for word in "${words[@]}"; do
  status=0
  case $word in
    apt:*) try_apt "${word#apt:}" || status=1 ;;
    rpm) try_rpm || status=1 ;;
    arch) try_arch || status=1 ;;
  esac
  outcome "$word" "$status"
done
[ "$failures" = 0 ]
