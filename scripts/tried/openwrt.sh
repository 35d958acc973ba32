#!/bin/bash
# Runs the small program as deploy/openwrt/truepeer does it, in a root with busybox alone: openwrt.sh [FILE of the small program]. Started,
# asked, reloaded, a wrong file refused, stopped. OpenWrt's procd is in no Debian: a stand-in of its rc.common starts the command that
# the script names, and only knows parameters that procd has. Needs root.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
. scripts/debian-packages.sh
say() { echo "openwrt: $*"; }
[ "$(id -u)" = 0 ] || { echo "SKIP openwrt: needs root"; exit 77; }
program=$(realpath "${1:-target/$(uname -m)-unknown-linux-musl/small/truepeer}")
root=$target/tried-openwrt
rm -rf "$root"
debian_packages "$root" bookworm busybox-static
dpkg-deb -x "$root"/debs/busybox-static_*.deb "$root"
rm -rf "$root"/{debs,usr/share}
mkdir -p "$root"/{proc,sys,dev,run,tmp,etc/init.d,usr/bin}
for name in $("$root/bin/busybox" --list); do [ -e "$root/bin/$name" ] || ln -s busybox "$root/bin/$name"; done
printf 'root:x:0:0:root:/root:/bin/ash\nnobody:*:65534:65534:nobody:/var:/bin/false\n' >"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
cat >"$root/etc/rc.common" <<'END'
#!/bin/sh
script=$1 action=$2
procd_open_instance() { command=; }
procd_set_param() {
  local kind=$1
  shift
  case $kind in
    command) command="$*" ;;
    limits) ulimit -n "$(echo "${1#nofile=}" | cut -d' ' -f1)" 2>/dev/null ;; # not where root may not raise it
    file | respawn | term_timeout | stdout | stderr) ;;
    *) echo "procd has no parameter $kind"; exit 1 ;;
  esac
}
procd_close_instance() {
  setsid $command >/tmp/truepeer.log 2>&1 </dev/null &
  echo $! >/tmp/truepeer.pid
}
. "$script"
case $action in
  start) start_service ;;
  reload) reload_service ;;
  stop) kill "$(cat /tmp/truepeer.pid)" ;;
esac
END
chmod 755 "$root/etc/rc.common"
install -D "$program" "$root/usr/bin/truepeer"
install -D deploy/openwrt/truepeer "$root/etc/init.d/truepeer"
install -Dm644 deploy/truepeer.toml "$root/etc/truepeer/truepeer.toml"
unshare --mount --pid --fork --net --kill-child bash -ec '
  scripts/new-network.sh openwrt
  root=$1
  ip link set lo up
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  for place in run tmp; do mount -t tmpfs tmpfs "$root/$place"; done
  inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"; }
  inside /etc/init.d/truepeer start
  for _ in $(seq 100); do inside /usr/bin/truepeer status >/dev/null 2>&1 && break; sleep .1; done
  inside /usr/bin/truepeer status
  grep -e "^Vm" -e "^Rss" "$root/proc/$(cat "$root/tmp/truepeer.pid")/status" | grep -e VmRSS
  inside /etc/init.d/truepeer reload
  echo "nonsense = 1" >>"$root/etc/truepeer/truepeer.toml"
  ! inside /etc/init.d/truepeer reload || exit 1
  ! inside /etc/init.d/truepeer start || exit 1
  cp deploy/truepeer.toml "$root/etc/truepeer/truepeer.toml"
  inside /etc/init.d/truepeer stop
  for _ in $(seq 100); do inside ps | grep -q "[t]ruepeer serve" || exit 0; sleep .1; done
  exit 1
' bash "$root" || { say "FAILED"; exit 1; }
say "started, asked, reloaded and stopped: $(stat -c %s "$program") bytes"
rm -rf "$root"
