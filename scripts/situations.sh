#!/bin/bash
# Executes the pages of docs/situations/ word by word: their files and commands, on hosts with a real systemd and
# the real programs, then a reboot of these hosts, then the checks again. situations/page.py says how a page is
# marked.
#
# So are those of situations/*.md, which are tests alone and end without a reboot.
#
#   scripts/situations.sh [--if-ready] [-v] [PAGE…]
#
# PAGE: for example game-server-frp; all by default. -v prints each block and its output. --if-ready: skipped
# unless the Debian is there. TRUEPEER_SITUATIONS_RELEASE: another release of Debian (bookworm). TRUEPEER: another
# program. Needs root; 10 to 60 s a page, and minutes the first time.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/debian.sh
. scripts/containers/checks.sh
release=${TRUEPEER_SITUATIONS_RELEASE:-bookworm}
# The layers of its hosts are on a tmpfs, because none can be on a layered file system.
root=${XDG_CACHE_HOME:-$HOME/.cache}/truepeer/situations-$release
export TRUEPEER=${TRUEPEER:-$target/debug/truepeer}
packages=(sudo curl ifupdown haproxy nginx-light libnginx-mod-stream postfix dovecot-imapd openssh-server
  openssh-client git fail2ban python3-systemd nftables unbound dns-root-data dnsdist knot-dnsutils go-mmproxy certbot
  ssl-cert podman crun netavark netcat-openbsd openssl ca-certificates iptables)

skip() { check_skip situations "$1"; checks_end; exit 0; }
[ "$(id -u)" = 0 ] || skip "root is needed"
if_ready=
if [ "${1-}" = --if-ready ]; then
  shift
  if_ready=1
  [ "$(cat "$root/etc/situations" 2>/dev/null)" = "${packages[*]}" ] || skip "its Debian is not there: make test-all makes it"
fi
command -v debootstrap >/dev/null || apt_install debootstrap >/dev/null || skip "debootstrap is missing"
findmnt -nt cgroup2 >/dev/null || skip "a mounted cgroup2 is needed"
[ -x "$TRUEPEER" ] || { echo "situations: no $TRUEPEER: cargo build -p truepeer"; exit 1; }
mkdir -p "$target/logs" "${root%/*}"

# A Debian with all programs, once for each machine. Nothing in it is enabled: a page does that.
install_packages() {
  debian_root "$root" "$release" || return 1
  [ "$(cat "$root/etc/situations" 2>/dev/null)" != "${packages[*]}" ] || return 0
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod 755 "$root/usr/sbin/policy-rc.d"
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive sh -c \
    "apt-get update -q && apt-get install -qy --no-install-recommends ${packages[*]}" \
    >"$target/logs/situations-apt.log" 2>&1 || return 1
  rm -f "$root"/etc/systemd/system/multi-user.target.wants/*.service "$root/etc/resolv.conf" "$root/usr/sbin/policy-rc.d"
  find "$root/etc/systemd/system" \( -name '*podman*' -o -name 'certbot*' \) -delete
  ln -sf /lib/systemd/system/networking.service "$root/etc/systemd/system/multi-user.target.wants/"
  # What its set-up finds on a machine with a network.
  sed -i 's/^inet_protocols.*/inet_protocols = all/' "$root/etc/postfix/main.cf"
  echo "${packages[*]}" >"$root/etc/situations"
}
# An authority for certbot, as Let's Encrypt's.
export PATH=$PATH:/usr/local/go/bin
[ -n "$if_ready" ] || scripts/pebble.sh
install_packages || skip "debootstrap or apt failed (target/logs/debootstrap.log, situations-apt.log)"
export TRUEPEER_SITUATIONS_ROOT=$root TRUEPEER_SITUATIONS_LOGS=$target/logs
exec unshare --mount --net --propagation private python3 scripts/situations/run.py "$@"
