# Debian's kernels in qemu, for scripts/kernels.sh; to be sourced. Packages come from the mirror of this
# machine's apt and are unpacked under target/kernels; nothing is installed. The machine has no disk: tools,
# modules and tests are its initramfs. It runs under KVM or, slowly, software emulation. guest_machine=aarch64 before
# it is sourced makes machines of that processor, emulated.
. scripts/debian-packages.sh
guests=$target/kernels guest_machine=${guest_machine:-x86_64}
case $guest_machine in
  x86_64) guest_debian=amd64 guest_console=ttyS0 guest_programs=(qemu-system-x86 seabios) ;;
  aarch64) guest_debian=arm64 guest_console=ttyAMA0 guest_programs=(qemu-system-arm) guests=$target/kernels-arm64 ;;
esac
# The release that qemu comes from, with all of its libraries: this machine's own may be older.
qemu_release=trixie
# The drivers, and all that the kernel's network code loads by itself when it is used.
modules=(net lib crypto arch/{x86,arm64}/crypto drivers/virtio drivers/ptp drivers/pps drivers/dca drivers/i2c/algos drivers/net/vmxnet3
         drivers/net/ethernet/intel/{e1000e,igb,igc} drivers/net/{veth,virtio_net,net_failover,macvlan,dummy,tun}.ko)
mkdir -p "$guests"

# qemu, and a busybox without libraries.
guest_qemu() {
  qemu=$guests/qemu
  if [ "$(cat "$qemu/stamp" 2>/dev/null)" != "$qemu_release" ]; then
    rm -rf "$qemu"
    debian_packages "$qemu" "$qemu_release" "${guest_programs[@]}" busybox-static || return 1
    for deb in "$qemu"/debs/*.deb; do dpkg-deb -x "$deb" "$qemu"; done
    rm -rf "$qemu/debs"
    echo "$qemu_release" >"$qemu/stamp"
  fi
  busybox=$qemu/usr/bin/busybox
}

# A release's newest kernel, once: `rm -r target/kernels` makes room for a newer one. Sets `kernel`, `version`
# and `package`, its version in Debian; $guests/RELEASE/modules.gz is for guest_boot.
guest_kernel() { # RELEASE
  local home=$guests/$1 root=$guests/$1/root deb lib own
  if [ ! -e "$home/stamp" ]; then
    rm -rf "$home"
    debian_packages "$home" "$1" "linux-image-$guest_debian:$guest_debian" || return 1
    for deb in "$home"/debs/linux-{image,binary,modules}-[0-9]*.deb; do [ ! -e "$deb" ] || dpkg-deb -x "$deb" "$root"; done
    package=$(basename "$home/debs/linux-image-$guest_debian"_*.deb | cut -d_ -f2)
    [ -d "$root/usr/lib/modules" ] || { mkdir -p "$root/usr/lib" && mv "$root/lib/modules" "$root/usr/lib/"; }
    lib=$(echo "$root"/usr/lib/modules/*)
    version=${lib##*/}
    cp "$lib/vmlinuz" "$home/vmlinuz" 2>/dev/null || cp "$root/boot/vmlinuz-$version" "$home/vmlinuz"
    own=$home/tree/lib/modules/$version
    mkdir -p "$own"
    (cd "$lib" && cp -r --parents $(ls -d modules.* $(printf 'kernel/%s* ' "${modules[@]}") 2>/dev/null) "$own")
    find "$own" -name '*.xz' -exec xz -d {} +
    "$busybox" depmod -b "$home/tree" "$version"
    # In a whole Debian /lib is a link, which a directory of an initramfs replaces.
    [ "$guest_machine" = x86_64 ] || { mkdir "$home/tree/usr" && mv "$home/tree/lib" "$home/tree/usr/"; }
    guest_pack "$home/tree" "$home/modules.gz"
    rm -rf "$root" "$home/debs" "$home/tree"
    echo "$version $package" >"$home/stamp"
  fi
  kernel=$home/vmlinuz
  read -r version package <"$home/stamp"
}

guest_pack() { (cd "$1" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$2"; } # directory, file

put() { mkdir -p "$tree/$(dirname "$2")"; cp -L "$1" "$tree/$2"; }
# A program and its shared libraries.
put_program() {
  put "$1" "$2"
  strip "$tree/$2" 2>/dev/null || true
  ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do [ -e "$tree$library" ] || put "$library" "$library"; done
}

# Begins the machine's tree, `$tree`, with these tools. Its first process mounts what a Debian has, loads
# drivers, and runs /work.
guest_tree() { # TOOL...
  local tool
  tree=$guests/tree
  rm -rf "$tree"
  mkdir -p "$tree"/{bin,sbin,proc,sys,dev,tmp,run,etc}
  put "$busybox" bin/busybox
  ln -s busybox "$tree/bin/true"
  ln -s ../bin/busybox "$tree/sbin/modprobe" # the kernel calls it
  echo root:x:0:0:root:/:/bin/sh >"$tree/etc/passwd"
  echo root:x:0: >"$tree/etc/group"
  for tool; do put_program "$(command -v "$tool")" "sbin/$tool"; done
  cat >"$tree/init" <<END
#!/bin/busybox sh
export PATH=/sbin:/bin HOME=/ NO_COLOR=1
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs run /run
busybox mount -t bpf bpf /sys/fs/bpf
busybox mount -t cgroup2 none /sys/fs/cgroup
for device in /sys/bus/pci/devices/*; do modprobe -q "\$(busybox cat \$device/modalias)"; done
for device in /sys/bus/virtio/devices/*; do [ ! -e \$device ] || modprobe -q "\$(busybox cat \$device/modalias)"; done
ip link set lo up
echo "Linux \$(busybox uname -r)"
busybox sh /work
busybox reboot -f
END
  chmod +x "$tree/init"
}

# KVM, if it boots $kernel with $guests/tree.gz in half a minute. In some virtual machines /dev/kvm is there,
# but emulates each instruction of a kernel. KERNELS_ACCEL=kvm or tcg decides without trying.
guest_accel() {
  accel=${KERNELS_ACCEL:-kvm}
  [ -z "${KERNELS_ACCEL-}" ] || return 0
  echo true >"$guests/try"
  if ! [ -r /dev/kvm ] || ! [ -w /dev/kvm ]; then say "software emulation, which takes tens of times longer: /dev/kvm can't be opened"
  elif guest_boot "$guests/try" "$guests/try.log" 30 -nic none >/dev/null; grep -q '^Linux ' "$guests/try.log"; then return 0
  else say "software emulation, which takes tens of times longer: with /dev/kvm no kernel boots in half a minute"; fi
  accel=tcg
}

# Devices t0 to t3 of the host in a network namespace of qemu's own, joined in pairs by bridges. Fails if this
# user can't have them.
guest_taps() { # [multi_queue]
  inside=(unshare --net)
  [ "$(id -u)" = 0 ] || inside=(unshare --map-root-user --net)
  inside+=(bash -c '
    set -e
    scripts/new-network.sh guest_taps
    for wire in 0 1; do ip link add "wire$wire" type bridge mcast_snooping 0; ip link set "wire$wire" addrgenmode none up; done
    for number in 0 1 2 3; do
      ip tuntap add "t$number" mode tap vnet_hdr $1
      ip link set "t$number" addrgenmode none master "wire$((number / 2))" up
    done
    shift
    exec "$@"' bash "${1-}")
  "${inside[@]}" true || { inside=(); return 1; }
}
inside=()

# Runs the file WORK in a machine with this kernel and $guests/tree.gz, for at most so many seconds. Output
# goes to LOG and to this one's.
guest_boot() { # WORK LOG SECONDS [OPTION OF QEMU...]
  local work=$1 log=$2 limit=$3 libraries=$qemu/usr/lib/x86_64-linux-gnu machine
  shift 3
  mkdir -p "$guests/orders"
  cp "$work" "$guests/orders/work"
  guest_pack "$guests/orders" "$guests/orders.gz"
  cat "$guests/tree.gz" "$(dirname "$kernel")/modules.gz" "$guests/orders.gz" >"$guests/initramfs"
  case $guest_machine in
    x86_64) machine=(-accel "$accel" -cpu max,-arch-capabilities) ;; # KVM may refuse that register
    aarch64) machine=(-accel tcg -machine virt -cpu cortex-a72) ;;
  esac
  QEMU_MODULE_DIR=$libraries/qemu "${inside[@]}" timeout "$limit" nice -n 5 "$libraries/ld-linux-x86-64.so.2" \
    --library-path "$libraries" "$qemu/usr/bin/qemu-system-$guest_machine" -L "$qemu/usr/share/seabios" -L "$qemu/usr/share/qemu" \
    "${machine[@]}" -m 2048 -smp 2 -nodefaults -nographic -vga none -serial stdio -no-reboot "$@" -kernel "$kernel" -initrd "$guests/initramfs" \
    -append "console=$guest_console quiet panic=-1 no_timer_check init=/init" </dev/null 2>"$guests/qemu.log" | sed -u 's|\r||g' | tee "$log" || true
}
