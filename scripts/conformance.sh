#!/bin/bash
# Probes programs that read or write PROXY headers, and writes docs/conformance.md. Needs root and Debian's packages,
# which are unpacked, not installed; minutes. Everything runs in network and mount namespaces of its own.
#
#     scripts/conformance.sh                    all
#     scripts/conformance.sh haproxy-http exim  only these; the page is left alone
set -euo pipefail
. "$(dirname "$0")/lib.sh"
home=$target/conformance
truepeer=${TRUEPEER:-$target/debug/truepeer}

if [ "${1-}" != --inside ]; then
  [ "$(id -u)" = 0 ] || { echo "conformance: needs root, for namespaces"; exit 1; }
  scripts/servers.sh scripts/conformance/programs.txt "$home/debian"
  scripts/servers.sh scripts/conformance/exim.txt "$home/exim"
  scripts/conformance/modules.sh "$home/modules"
  mkdir -p "$home/out"
  exec unshare -mn --propagation private "$0" --inside "$@"
fi
shift
scripts/new-network.sh scripts/conformance.sh

# As if the packages were installed: their files lie over this machine's, and users and logs are this namespace's.
work=$(mktemp -d /tmp/conformance.XXXXXX)
trap 'umount -l "$work"; rmdir "$work"' EXIT
mount -t tmpfs tmpfs "$work"
layers=
for root in "$home/exim/root" "$home/debian/root"; do
  # Debian's /lib, /bin and /sbin are links into /usr.
  for merged in lib bin sbin; do [ ! -d "$root/$merged" ] || cp -an "$root/$merged" "$root/usr/"; done
  layers+=$root/usr:
done
mount -t overlay overlay -o "lowerdir=$layers/usr" /usr
for directory in etc var; do
  mkdir -p "$work/$directory/"{up,work}
  layers=
  for root in "$home/exim/root" "$home/debian/root"; do [ ! -d "$root/$directory" ] || layers+=$root/$directory:; done
  mount -t overlay overlay -o "lowerdir=$layers/$directory,upperdir=$work/$directory/up,workdir=$work/$directory/work" "/$directory"
done
mount -t tmpfs tmpfs /run
ldconfig
number=61000
for user in postfix postdrop dovecot dovenull Debian-exim trafficserver proxy varnish vcache varnishlog _dnsdist pdns unbound www-data haproxy nginx; do
  number=$((number + 1))
  grep -q "^$user:" /etc/passwd || echo "$user:x:$number:$number::/nonexistent:/usr/sbin/nologin" >>/etc/passwd
  grep -q "^$user:" /etc/group || echo "$user:x:$number:" >>/etc/group
done
ip link set lo up
# The replies of a transparent relay's backend come back to it.
for family in -4 -6; do ip $family rule add iif lo lookup 123; done
ip route add local 0.0.0.0/0 dev lo table 123
ip -6 route add local ::/0 dev lo table 123

chmod 755 "$work"
mkdir -p "$work/programs"
names=("$@")
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(sed -n 's/^\(receiver\|sender\)_\([a-z0-9_]*\)() .*/\2/p' scripts/conformance/{receivers,senders}.sh)
for name in "${names[@]}"; do
  echo "==> $name"
  rm -f "$home/out/$name".*
  # Its processes end with their namespace.
  unshare -pf --kill-child --mount-proc scripts/conformance/one.sh "$name" "$work/programs" "$home" "$truepeer" </dev/null || echo "    did not run"
done
[ $# -gt 0 ] || scripts/conformance/page.py "$home/out" docs/conformance.md
