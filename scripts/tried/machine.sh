#!/bin/bash
# Uses truepeer in whole machines of a processor, emulated or under KVM, with Debian's kernels: machine.sh aarch64|x86_64 [RELEASE...]
# (bookworm: 6.1, trixie: 6.12). In each, apt installs it from target/repository (scripts/repository.sh), it is used in each way (use.py)
# and purged, and dnf does the same in a root with nothing but a shell; what is left then fails. Then the static binary of the tarball,
# the image's files alone and the small program are used, if target/packages has them. MACHINE_SUITES=demo also runs the program of `make demo`
# with the static binary, MACHINE_SUITES=all some tests of each kind as well, all built for this processor. Needs root and, emulated,
# a quarter of an hour for each kernel.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
guest_machine=${1:?the processor: aarch64 or x86_64}
shift
say() { echo "machine: $*"; }
fail() { say "$*"; exit 1; }
. scripts/guest.sh
. scripts/cross.sh
ls target/repository/apt/pool/truepeer_*_"$guest_debian".deb >/dev/null 2>&1 || fail "scripts/package.sh $guest_machine and make repository first"
packages=(dnf dnsdist ethtool haproxy iproute2 kmod libnginx-mod-stream libpython3-stdlib mount nftables nginx-light python3-minimal rpm unbound)
for need in mmdebstrap:mmdebstrap skopeo:skopeo qemu-aarch64-static:qemu-user-static rpmbuild:rpm createrepo_c:createrepo-c; do
  command -v "${need%:*}" >/dev/null || apt_install "${need#*:}" || fail "missing: ${need#*:}"
done
guest_qemu || fail "apt can't provide qemu of $qemu_release"
root=$guests/root-demo.tar
[ -e "$root" ] || scripts/tried/foreign-root.sh "$guest_debian" bookworm "$root" "${packages[@]}" >"$guests/root.log" 2>&1 || fail "see $guests/root.log"

tree=$guests/tree
rm -rf "$tree"
mkdir -p "$tree"
tar -C "$tree" --exclude='./dev/*' -xf "$root"
rm -rf "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/* "$tree"/usr/share/{doc,locale,man}
mkdir "$tree/repository"
cp -r target/repository/apt target/repository/rpm target/repository/truepeer.{asc,repo} "$tree/repository/"
find "$tree/repository" \( -name '*.deb' ! -name "*_$guest_debian.deb" \) -delete
find "$tree/repository" \( -name '*.rpm' ! -name "*.$guest_machine.rpm" \) -delete
sed -i -e 's|^baseurl=.*|baseurl=file:///repository/rpm|' -e 's|^gpgkey=.*|gpgkey=file:///repository/truepeer.asc|' "$tree/repository/truepeer.repo"
rm -f "$tree"/etc/apt/sources.list.d/*
echo "deb [signed-by=/repository/truepeer.asc] file:/repository/apt stable main" >"$tree/etc/apt/sources.list"
for name in '' -small; do
  file=$(ls target/packages/truepeer"$name"-[0-9]*-"$guest_machine"-linux-musl.tar.gz 2>/dev/null | tail -1) || true
  [ -z "$file" ] || tar -C "$tree" --strip-components=1 --wildcards --one-top-level="static$name" -xf "$file" '*/usr/bin/truepeer'
done
file=$(ls target/packages/truepeer-[0-9]*-image.tar 2>/dev/null | tail -1) || true
if [ -n "$file" ]; then
  rm -rf "$guests/image"
  skopeo copy -q --override-arch "$guest_debian" "oci-archive:$file" "dir:$guests/image"
  mkdir -p "$tree"/image/{proc,sys,dev,run,tmp}
  for layer in $(skopeo inspect --format '{{range .Layers}}{{.}} {{end}}' "dir:$guests/image"); do tar -C "$tree/image" -xzf "$guests/image/${layer#*:}"; done
fi
. scripts/tried/shell-package.sh
shell_package "$tree/shell" "$guest_machine"
cp scripts/tried/use.py "$tree/"

# Tests that need no network card; a processor could fail them by its order of memory, its page size, or its numbers of system calls.
attach=(detach_waits_for_open_connections flows_end_with_their_sockets udp::a_backend_on_the_senders_host_sees_the_client udp::ports_are_mapped_both_ways)
packets=(handshake::)
run=(pollers::a_late_header_ends edges::late_headers)
proxy_splice=(a_session_leaves_user_space_and_its_bytes_are_counted)
models=(splice_in_does_what_its_model_says errors_go)
suites() {
  local json triple=$guest_machine-unknown-linux-gnu name test crate file
  cross_to "$triple" || return 1
  say "building the demo"
  env "${cross[@]}" cargo build -q --target "$triple" -p truepeer-testbed --bin demo || return 1
  mkdir -p "$tree/suites"
  "$cross_strip" -o "$tree/suites/demo" "$target/$triple/debug/demo"
  echo "/suites/demo /static/usr/bin/truepeer || fail demo" >"$tree/suites/work"
  [ "$MACHINE_SUITES" = all ] || return 0
  say "building the tests"
  json=$(env "${cross[@]}" cargo test --target "$triple" -p truepeer -p truepeer-bpf --test attach --test packets --test run_notify --test splice --no-run \
    --message-format=json 2>"$guests/build.log") || { tail -20 "$guests/build.log"; return 1; }
  file=$target/$triple/debug/truepeer
  mkdir -p "$tree$(dirname "$file")"
  "$cross_strip" -o "$tree$file" "$file"
  while read -r name test crate; do
    file=$(grep "crates/$crate[/#]" <<<"$json" | grep -o '"executable":"[^"]*/'"$test"'-[^"]*"' | tail -1 | cut -d'"' -f4)
    "$cross_strip" -o "$tree/suites/$name" "$file"
  done <<<"attach attach truepeer
packets packets truepeer
run run_notify truepeer
proxy-splice splice truepeer
models splice bpf"
  { echo "export MODEL_SEGMENTS=5000"
    for name in attach packets run proxy-splice models; do
      local -n tests=${name//-/_}
      for test in "${tests[@]}"; do echo "/suites/$name --color never --test-threads 1 $test || fail '$name $test'"; done
    done
  } >>"$tree/suites/work"
}
[ -z "${MACHINE_SUITES-}" ] || suites || fail "the tests can't be built"
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
emulated="Debian 12 in a machine of qemu"
failed=0
fail() { echo "FAILED $1"; failed=1; }
files() { find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /dev -o -path /tmp -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt \) -prune -o -print | sort; }
use() { # HOW, more arguments of use.py
  how=$1
  shift
  ip -all netns del
  ip link del here 2>/dev/null
  python3 /use.py --where "$emulated,$how" "$@" || fail "$how"
  [ -z "$(pins ! -type d)" ] || { pins; fail "$how: pins"; }
}
pins() { find /sys/fs/bpf -mindepth 1 ! -name '*.debug' "$@"; } # these are the kernel's
mounts() { for place in proc sys dev run tmp; do mount --rbind /$place $1/$place; done; }
files >/run/before
(apt-get update && apt-get install -y truepeer) >/run/dpkg.log 2>&1 || { cat /run/dpkg.log; fail apt; }
tail -3 /run/dpkg.log
truepeer --version
truepeer check -c /etc/truepeer/truepeer.toml || fail check
use "apt repository"
apt-get purge -y truepeer >/run/dpkg.log 2>&1 || { cat /run/dpkg.log; fail purge; }
files >/run/after
diff /run/before /run/after || fail "apt: files are left"
[ -z "$(pins)" ] || { pins; fail "apt: directories of pins are left"; }

root=/dnf
dnf="dnf -y --releasever=1 --installroot=$root --setopt=reposdir=$root/etc/yum.repos.d"
mkdir -p $root/etc/yum.repos.d $root/proc $root/sys $root/dev $root/run $root/tmp
printf '[shell]\nname=shell\nbaseurl=file:///shell\ngpgcheck=0\n' >$root/etc/yum.repos.d/shell.repo
$dnf install shell >/run/dnf.log 2>&1 || { cat /run/dnf.log; fail "dnf: shell"; }
inside() { find $root -xdev | grep -v -e $root/var -e $root/tmp | sort; }
inside >/run/before
cp /repository/truepeer.repo $root/etc/yum.repos.d/
$dnf install truepeer >/run/dnf.log 2>&1 || { cat /run/dnf.log; fail dnf; }
mounts $root
use "rpm repository" --only attach,attach-udp,proxy,splice,udp,https chroot $root /usr/bin/truepeer
$dnf remove truepeer >/run/dnf.log 2>&1 || { cat /run/dnf.log; fail "dnf remove"; }
for place in proc sys dev run tmp; do umount -Rl $root/$place; done
rm -f $root/etc/yum.repos.d/truepeer.repo
inside >/run/after
diff /run/before /run/after || fail "dnf: files are left"
[ -z "$(pins)" ] || { pins; fail "dnf: directories of pins are left"; }

[ ! -e /static ] || use "static tarball" /static/usr/bin/truepeer
if [ -e /image ]; then
  mounts /image
  use "files of the image" --only attach,attach-udp,proxy,splice,udp,https chroot /image /usr/bin/truepeer
fi
[ ! -e /static-small ] || use "small program" --only attach,attach-udp,notify,proxy,splice,udp /static-small/usr/bin/truepeer
[ ! -e /suites ] || . /suites/work
[ $failed = 0 ] && echo "machine: all ok"
END
releases=("$@")
[ $# -gt 0 ] || releases=(bookworm trixie)
failures=0
for release in "${releases[@]}"; do
  guest_kernel "$release" || fail "apt can't provide the kernel of $release"
  [ -n "${accel-}" ] || [ "$guest_machine" = aarch64 ] || guest_accel
  start=$SECONDS
  say "booting Linux $version"
  guest_boot "$guests/commands" "$guests/$release.log" "${MACHINE_TIMEOUT:-2400}" -nic none
  if grep -q '^machine: all ok' "$guests/$release.log"; then say "Linux $version ($package): all ways, in $((SECONDS - start)) s"
  else tail -3 "$guests/qemu.log"; say "FAILED on Linux $version"; failures=$((failures + 1)); fi
done
[ "$failures" = 0 ]
