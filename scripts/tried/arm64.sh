#!/bin/bash
# Uses truepeer for arm64 in whole emulated machines with Debian's arm64 kernels: arm64.sh [RELEASE...] (bookworm: 6.1, trixie: 6.12).
# In each, apt installs it from target/repository (scripts/repository.sh), it is used in each way (use.py) and purged; what is left
# then fails. Then, if it is there, the small program of scripts/small.sh is used. Needs root and two minutes for each kernel.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
say() { echo "arm64: $*"; }
fail() { say "$*"; exit 1; }
guest_machine=aarch64
. scripts/guest.sh
ls target/repository/apt/pool/truepeer_*_arm64.deb >/dev/null 2>&1 || fail "scripts/package.sh aarch64 and make repository first"
small=target/aarch64-unknown-linux-musl/small/truepeer
packages=(haproxy iproute2 kmod libpython3-stdlib mount python3-minimal)
for need in mmdebstrap:mmdebstrap qemu-aarch64-static:qemu-user-static; do
  command -v "${need%:*}" >/dev/null || apt_install "${need#*:}" || fail "missing: ${need#*:}"
done
guest_qemu || fail "apt can't provide qemu of $qemu_release"
root=$guests/root.tar
[ -e "$root" ] || scripts/tried/foreign-root.sh arm64 bookworm "$root" "${packages[@]}" >"$guests/root.log" 2>&1 || fail "see $guests/root.log"

tree=$guests/tree
rm -rf "$tree"
mkdir -p "$tree"
tar -C "$tree" --exclude='./dev/*' -xf "$root"
rm -rf "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/*
mkdir "$tree/repository"
cp -r target/repository/apt target/repository/truepeer.asc "$tree/repository/"
rm -f "$tree"/repository/apt/pool/*_amd64.deb "$tree"/etc/apt/sources.list.d/*
echo "deb [signed-by=/repository/truepeer.asc] file:/repository/apt stable main" >"$tree/etc/apt/sources.list"
[ ! -e "$small" ] || cp "$small" "$tree/small"
cp scripts/tried/use.py "$tree/"
cat >"$tree/init" <<'END'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ NO_COLOR=1 LC_ALL=C PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 none /sys/fs/cgroup
depmod # the modules come without kmod's index
echo "Linux $(uname -rm)"
sh /work
echo o >/proc/sysrq-trigger
sleep 60
END
chmod +x "$tree/init"
guest_pack "$tree" "$guests/tree.gz"
cat >"$guests/commands" <<'END'
failed=0
files() { find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /dev -o -path /tmp -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt \) -prune -o -print | sort; }
files >/run/before
(apt-get update && apt-get install -y truepeer) >/run/dpkg.log 2>&1 || { cat /run/dpkg.log; failed=1; }
tail -3 /run/dpkg.log
truepeer --version
truepeer check -c /etc/truepeer/truepeer.toml || failed=1
python3 /use.py || failed=1
apt-get purge -y truepeer >/run/dpkg.log 2>&1 || { cat /run/dpkg.log; failed=1; }
files >/run/after
diff /run/before /run/after || failed=1

[ -z "$(ls /sys/fs/bpf)" ] || { find /sys/fs/bpf; failed=1; }
if [ -e /small ]; then
  ip -all netns del
  ip link del here 2>/dev/null
  python3 /use.py --only attach,attach-udp,notify,proxy,splice,udp /small || failed=1
fi
echo "arm64: failed=$failed"
END
releases=("$@")
[ $# -gt 0 ] || releases=(bookworm trixie)
failures=0
for release in "${releases[@]}"; do
  guest_kernel "$release" || fail "apt can't provide the kernel of $release"
  start=$SECONDS
  say "booting Linux $version"
  guest_boot "$guests/commands" "$guests/$release.log" "${ARM64_TIMEOUT:-1500}" -nic none
  if grep -q '^arm64: failed=0' "$guests/$release.log"; then say "Linux $version ($package): all ways, in $((SECONDS - start)) s"
  else tail -3 "$guests/qemu.log"; say "FAILED on Linux $version"; failures=$((failures + 1)); fi
done
[ "$failures" = 0 ]
