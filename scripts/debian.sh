# A Debian in a directory, by default of this machine's release, and a real systemd in it as process 1, in namespaces of its own; to be
# sourced. Needs root.

# Makes the directory, once. Uses the mirror of this machine's apt.
debian_root() { # directory [release]
  local release=${2:-$(. /etc/os-release; echo "$VERSION_CODENAME")} mirror
  [ ! -e "$1/etc/debian_version" ] || return 0
  rm -rf "$1"
  mirror=$(awk '$1 == "deb" { print $2; exit } $1 == "URIs:" { print $2; exit }' \
    $(ls /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null))
  debootstrap --variant=minbase --include=systemd-sysv,dbus,iproute2,python3-minimal "$release" "$1.new" "$mirror" \
    >"$target/logs/debootstrap.log" 2>&1
  mv "$1.new" "$1"
}

# Starts systemd. Its cgroup is a child of this one: a cgroup2 without controllers is enough. `truepeer attach` needs the root of the
# hierarchy, which is mounted on /run/cgroup-of-host. Variables: debian_name, its host name; debian_netns, the path of a network
# namespace to use instead of a new one.
debian_boot() { # directory
  local root=$1 cgroups cgroup name=${debian_name:-debian} network=(--net) enter=()
  [ -z "${debian_netns-}" ] || network=() enter=(nsenter "--net=$debian_netns")
  cgroups=$(findmnt -nt cgroup2 -o TARGET | head -1)
  cgroup=$cgroups/truepeer-debian-$$
  mkdir "$cgroup"
  (
    echo $BASHPID >"$cgroup/cgroup.procs"
    exec "${enter[@]}" unshare --mount --pid --fork --kill-child --cgroup "${network[@]}" --uts --ipc bash -c '
      set -e
      scripts/new-network.sh debian_boot
      root=$1
      mount --make-rprivate /
      mount --bind "$root" "$root"
      cd "$root"
      mount -t proc proc proc
      mount -t sysfs sysfs sys
      mount -t cgroup2 cgroup2 sys/fs/cgroup
      mount -t tmpfs -o mode=755 tmpfs run
      mkdir run/cgroup-of-host
      mount --bind "$2" run/cgroup-of-host
      mount -t tmpfs tmpfs tmp
      mount -t tmpfs -o mode=755 tmpfs dev
      for node in null zero full random urandom tty; do touch dev/$node; mount --bind /dev/$node dev/$node; done
      mkdir dev/pts dev/shm
      mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
      ln -s pts/ptmx dev/ptmx
      ip link set lo up
      hostname "$3"
      # On a machine systemd mounts it, in a container it does not.
      mount -t bpf -o mode=700 bpf sys/fs/bpf
      pivot_root . mnt
      umount -l /mnt
      exec env -i container=truepeer PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console --show-status=no
    ' bash "$root" "$cgroups" "$name"
  ) >"$target/logs/$name.log" 2>&1 </dev/null &
  debian_unshare=$!
  for _ in $(seq 300); do
    debian_pid=$(cat "/proc/$debian_unshare/task/$debian_unshare/children" 2>/dev/null | tr -d ' ')
    [ -z "$debian_pid" ] || [ "$(cat "/proc/$debian_pid/comm")" != systemd ] ||
      case $(debian_run systemctl is-system-running 2>/dev/null) in running | degraded) return 0 ;; esac
    sleep .2
  done
  tail -5 "$target/logs/$name.log"
  return 1
}

# Runs a command there.
debian_run() { nsenter -t "$debian_pid" -m -p -n -u -i -C env -i LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }

# Ends it, with all its processes.
debian_end() {
  kill -9 "$debian_pid" 2>/dev/null || true
  wait "$debian_unshare" 2>/dev/null || true
  find "$(findmnt -nt cgroup2 -o TARGET | head -1)/truepeer-debian-$$" -depth -type d -exec rmdir {} + 2>/dev/null || true
}
