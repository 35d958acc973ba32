#!/bin/bash
# Runs the tarball's static binary as deploy/openrc/truepeer does it, in a root with busybox and OpenRC, as Alpine has them:
# openrc.sh TREE [FILE of the static binary]. Started, asked, reloaded, stopped, used in each way (use.py), removed. TREE is OpenRC as its own build installs it
# (meson setup BUILD -Dprefix=/usr; meson install -C BUILD --destdir TREE): Debian's lacks start-stop-daemon. Needs root.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
. scripts/debian-packages.sh
say() { echo "openrc: $*"; }
[ "$(id -u)" = 0 ] || { echo "SKIP openrc: needs root"; exit 77; }
openrc=$(realpath "${1:?directory of OpenRC}")
binary=${2-}
root=$target/tried-openrc
rm -rf "$root"
debian_packages "$root" bookworm busybox-static dash libcap2
for deb in "$root"/debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
rm -rf "$root/debs" "$root/usr/share/doc"
cp -a "$openrc/." "$root/"
mkdir -p "$root"/{proc,sys,dev,run,tmp,var/log}
# Its own shell would prefer its start-stop-daemon to OpenRC's, which Alpine's has not.
ln -sf dash "$root/bin/sh"
for name in $("$root/bin/busybox" --list | grep -v -e '^start-stop-daemon$' -e '^sh$' -e '^busybox$'); do [ -e "$root/bin/$name" ] || [ -e "$root/sbin/$name" ] || ln -s busybox "$root/bin/$name"; done
printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
if [ -z "$binary" ]; then
  tar -C "$target" -xf "$(ls target/packages/truepeer-*-"$(uname -m)"-linux-musl.tar.gz | tail -1)" --strip-components=1 --wildcards '*/usr/bin/truepeer' --one-top-level=tried-static
  binary=$target/tried-static/usr/bin/truepeer
fi
(cd "$root" && find . -xdev | sort) >"$target/logs/openrc.before"
install -D "$binary" "$root/usr/bin/truepeer"
install -D deploy/openrc/truepeer "$root/etc/init.d/truepeer"
install -Dm644 deploy/truepeer.toml "$root/etc/truepeer/truepeer.toml"
version=$(sed -n "s/^Version: //p" "$(find "$openrc" -name openrc.pc)")
servers=$target/servers/root
export HAPROXY="${HAPROXY:-env LD_LIBRARY_PATH=$servers/usr/lib/$(uname -m)-linux-gnu:$servers/lib/$(uname -m)-linux-gnu $servers/usr/sbin/haproxy}"
unshare --mount --pid --fork --net --kill-child --propagation private bash -ec '
  scripts/new-network.sh openrc
  root=$1
  ip link set lo up
  scripts/tried/own-mounts.sh
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/run"
  mount -t tmpfs tmpfs "$root/tmp"
  mkdir -p "$root"/run/openrc/{started,starting,stopping,inactive,wasinactive,failed,hotplugged,daemons,options,exclusive,scheduled,tmp}
  touch "$root/run/openrc/softlevel"
  inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"; }
  # Debian names no service that provides the network without its own scripts.
  printf "#!/sbin/openrc-run\ndepend() { provide net; }\nstart() { :; }\n" >"$root/etc/init.d/net.lo"
  chmod 755 "$root/etc/init.d/net.lo"
  inside /sbin/rc-service truepeer start
  inside /sbin/rc-service truepeer status
  for _ in $(seq 100); do inside /usr/bin/truepeer status >/dev/null 2>&1 && break; sleep .1; done
  inside /usr/bin/truepeer status
  inside /sbin/rc-service truepeer reload
  echo "nonsense = 1" >>"$root/etc/truepeer/truepeer.toml"
  ! inside /sbin/rc-service truepeer reload || exit 1
  cp deploy/truepeer.toml "$root/etc/truepeer/truepeer.toml"
  inside /sbin/rc-service truepeer stop
  ! inside /bin/ps | grep "[t]ruepeer serve" || exit 1
  # use.py asks the admin socket by its path.
  umount "$root/tmp"
  mount --bind /tmp "$root/tmp"
  # It has no Python for `run`.
  python3 scripts/tried/use.py --where "$2,static tarball" --only attach,attach-udp,proxy,splice,udp,https chroot "$root" /usr/bin/truepeer
  pins=$(find /sys/fs/bpf ! -type d ! -name "*.debug")
  [ -z "$pins" ] || { echo "$pins"; exit 1; }
' bash "$root" "a root with busybox and OpenRC $version" || { say "FAILED"; exit 1; }
rm -rf "$root"/{usr/bin/truepeer,etc/init.d/truepeer,etc/init.d/net.lo,etc/truepeer,var/log/truepeer.log}
(cd "$root" && find . -xdev | sort) >"$target/logs/openrc.after"
diff "$target/logs/openrc.before" "$target/logs/openrc.after" || { say "FAILED: files are left"; exit 1; }
say "started, asked, reloaded, stopped and removed"
