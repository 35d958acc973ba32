#!/bin/bash
# A whole rootless Docker, as Debian's dockerd-rootless.sh starts it for a plain user (RootlessKit, slirp4netns), with truepeer as its
# docker-proxy: published ports of TCP and UDP name the client. In namespaces of its own. Needs root, and the programs of engines.txt
# (`make engines`); RootlessKit, slirp4netns and newuidmap are unpacked under target/rootless.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
. scripts/debian-packages.sh
. scripts/containers/node.sh
. scripts/containers/images.sh
. scripts/containers/checks.sh
say() { echo "rootless: $*"; }
truepeer=$(realpath "${TRUEPEER:-$target/debug/truepeer}")
tools=$target/rootless four=(203.0.113.9 5109)
node_needs rootless
[ -x "$truepeer" ] || { say "no $truepeer: cargo build, or name one by TRUEPEER"; exit 1; }
mkdir -p "$target/logs"
if [ ! -e "$tools/stamp" ]; then
  rm -rf "$tools"
  debian_packages "$tools" "$(. /etc/os-release; echo "$VERSION_CODENAME")" rootlesskit slirp4netns uidmap
  for deb in "$tools"/debs/{rootlesskit,slirp4netns,libslirp0,uidmap,libsubid,libseccomp}*.deb; do [ ! -e "$deb" ] || dpkg-deb -x "$deb" "$tools/root"; done
  rm -rf "$tools/debs"
  touch "$tools/stamp"
fi
trap node_end EXIT
make_images
node_up v2

# The user sees neither root's directories nor what other users' daemons left in /run.
home=/home/gamer
node_run sh -ec '
  home=$1 engines=$2 tools=$3 truepeer=$4
  # Not below /run, of which RootlessKit makes links.
  mount -t tmpfs -o mode=755 tmpfs /home
  mkdir -p "$home/bin" "$home/.config/truepeer" /run/user/2142 /run/node/engines /run/node/tools
  cp "$truepeer" "$home/bin/truepeer"
  mount --bind "$engines" /run/node/engines
  mount --bind "$tools" /run/node/tools
  ln -s truepeer "$home/bin/docker-proxy"
  printf "8080 --allow 127.0.0.1\n5300/udp --allow 127.0.0.1\n8083 --allo 127.0.0.1\n" >"$home/.config/truepeer/docker-proxy.conf"
  { cat /etc/passwd; echo "gamer:x:2142:2142::$home:/bin/sh"; } >/run/node/passwd
  { cat /etc/group; echo "gamer:x:2142:"; } >/run/node/group
  echo "gamer:214200:65536" >/run/node/subids
  for name in passwd group; do mount --bind "/run/node/$name" "/etc/$name"; done
  for name in subuid subgid; do touch "/etc/$name"; mount --bind /run/node/subids "/etc/$name"; done
  # Elsewhere udev lets all users open it.
  mknod -m 666 /run/node/tun c 10 200
  mount --bind /run/node/tun /dev/net/tun
  chown -R 2142:2142 "$home" /run/user/2142
  chmod 755 /run/node' sh "$home" "$engines" "$tools/root" "$truepeer"
root=/run/node/engines/root
as_user() {
  nsenter -t "$node_pid" -m -n -p -i -u -- setpriv --reuid 2142 --regid 2142 --clear-groups env -i -C "$home" TERM=dumb LC_ALL=C.UTF-8 HOME=$home \
    XDG_RUNTIME_DIR=/run/user/2142 DOCKER_HOST=unix:///run/user/2142/docker.sock \
    PATH="$home/bin:/run/node/tools/usr/bin:/run/node/tools/bin:$root/usr/sbin:$root/usr/bin:$root/sbin:$root/bin:/run/node/engines/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    LD_LIBRARY_PATH="$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu:/run/node/tools/usr/lib/x86_64-linux-gnu:/run/node/tools/lib/x86_64-linux-gnu" \
    XTABLES_LIBDIR="$root/usr/lib/x86_64-linux-gnu/xtables" "$@"
}
as_user setsid sh "$root/usr/share/docker.io/contrib/dockerd-rootless.sh" --storage-driver vfs --log-level warn \
  --init-path "$root/usr/bin/docker-init" >"$target/logs/rootless.log" 2>&1 </dev/null &
disown
end=$((SECONDS + 60))
until as_user docker version >/dev/null 2>&1; do [ $SECONDS -lt $end ] || { tail -20 "$target/logs/rootless.log"; exit 1; }; sleep .2; done
say "$(as_user docker version --format 'Docker {{.Server.Version}}'), $(as_user rootlesskit --version), user $(as_user id -u)"

ask=(python3 scripts/containers/ask.py)
from_lb() { node_run ip netns exec lb "${ask[@]}" "$@"; }
named() { # port; waits for the client's name, then prints what the server says
  local end=$((SECONDS + 15)) said
  until said=$(from_lb tcp 10.0.0.1 "$1" "${four[@]}" v1) && [ "$said" = "${four[*]}" ]; do [ $SECONDS -lt $end ] || break; done
  echo "$said"
}
tar -C "$images/go" -c . | as_user docker import -c "CMD $(image_command go)" - go >/dev/null
as_user docker run -d --name go -p 8080:80 -p 5300:53/udp -p 8090:80 go >/dev/null
check_is "rootless: a published port, TCP" "$(named 8080)" "${four[*]}"
check_is "rootless: a published port, UDP" "$(from_lb udp 10.0.0.1 5300 "${four[@]}")" "${four[*]}"
check_is "rootless: a second datagram, UDP" "$(from_lb udp 10.0.0.1 5300 203.0.113.10 5110)" "203.0.113.10 5110"
check_is "rootless: a port without a line is Docker's own" "$(from_lb tcp 10.0.0.1 8090 | cut -d' ' -f1)" 172.17.0.1
check_is "rootless: a wrong line fails the start, and says why" "$(as_user docker run -d -p 8083:80 go 2>&1 | grep -c 'docker-proxy.conf: .*--allo')" 1
node_run sed -i 's/--allo /--allow /' "$home/.config/truepeer/docker-proxy.conf"
as_user docker run -d --name mended -p 8083:80 go >/dev/null
check_is "rootless: the mended line serves the same port" "$(named 8083)" "${four[*]}"
as_user docker rm -f go mended >/dev/null
check_is "rootless: nothing is left" "$(node_run ps -e -o args | grep -c '^truepeer proxy')" 0
checks_end
