#!/bin/bash
# Boots Debian's Linux 6.1 under qemu (software emulation) with only truepeer and its tests of attach, and runs a
# few of them: the programs load, attach and carry TCP and UDP there, too. Then the hand-made packets: damage,
# blind segments, ways past. Then sessions that leave user space: by `truepeer proxy --splice`, against the model of their program, and between hosts.
# Everything is unpacked under target/old-kernel, nothing is installed, and no root is needed. OLD_KERNEL_PACKAGE names another kernel's
# package.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
home=$target/old-kernel
package=${OLD_KERNEL_PACKAGE:-linux-image-cloud-amd64}
tests=(a_right_guess_alters_no_packet flows_end_with_their_sockets a_name_belongs_to_its_socket
       detach_waits_for_open_connections udp::a_backend_on_the_senders_host_sees_the_client
       udp::answers_in_spp_carry_the_header_back udp::ports_are_mapped_both_ways udp::a_connected_socket_answers
       udp::aggregated_datagrams_are_split a_vlan_is_a_link_like_others
       leftovers::a_namespace_without_process_is_alive leftovers::a_namespace_whose_device_is_gone_is_alive
       an_ended_flow_does_not_translate_other_connections cut::)
# again:: is two tests there: the others need Linux 6.9. Datagrams, links that lose packets, and floods take too long under emulation.
packets=(damage:: handshake:: paths:: unjudged:: holds:: again::)
# A session leaves there, over a VLAN, too.
proxy_splice=(a_session_leaves_user_space_and_its_bytes_are_counted a_session_over_a_vlan_leaves)
# Only a few short tests of each kind: every packet costs fifty times as much here.
models=(splice_in_does_what_its_model_says errors_go a_segment_that_is_too_long a_window_probe a_damaged_segment_teaches what_follows_a_damaged)
links=(questions_and_answers_over_good_links questions_and_answers_over_bad_links_by_ipv4 bulk_both_ways_over_good_links_by_ipv6
       a_reset_in_the_tail learns_of_a_path a_third_host)
[ $# -eq 0 ] || { tests=("$@") packets=() proxy_splice=() models=() links=(); }
say() { echo "old-kernel: $*"; }
skip() { echo "SKIP old-kernel: $*"; exit 0; }

[ "$(uname -m)" = x86_64 ] || skip "this script supports x86_64 only"
tools=(ip unshare setpriv ethtool tc ss) # needed by tests
for tool in "${tools[@]}" gzip; do command -v "$tool" >/dev/null || skip "needs $tool"; done
! command -v nft >/dev/null || tools+=(nft) # without it the tests of redirected ports are skipped
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "needs apt-get"
mkdir -p "$home"
exec 9>"$home/lock"
flock 9

# Downloads packages with their dependencies. apt's state is kept in a separate directory.
fetch() {
  local options=(-q -o "Dir::Cache=$home/apt/cache" -o "Dir::Cache::archives=$home/debs" -o Debug::NoLocking=1
                 -o APT::Sandbox::User= -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
  mkdir -p "$home/apt/lists/partial" "$home/apt/cache" "$home/debs/partial"
  if ! ls /var/lib/apt/lists/*Packages* >/dev/null 2>&1; then
    options+=(-o "Dir::State::lists=$home/apt/lists")
    apt-get "${options[@]}" update >"$home/update.log" 2>&1 || return 1
  fi
  # As if nothing were installed: otherwise apt would leave out what is installed already.
  options+=(-o Dir::State::status=/dev/null)
  say "downloading (not installing): $*"
  apt-get "${options[@]}" -y --no-install-recommends --download-only install "$@" >"$home/download.log" 2>&1
}

if [ "$(cat "$home/stamp" 2>/dev/null)" != "$package" ]; then
  rm -rf "$home/root" "$home/debs"
  fetch "$package" qemu-system-x86 qemu-system-data seabios busybox-static || {
    tail -3 "$home/download.log" "$home/update.log" 2>/dev/null || true
    skip "apt can't provide $package or qemu"
  }
  mkdir -p "$home/root"
  for deb in "$home"/debs/*.deb; do dpkg-deb -x "$deb" "$home/root"; done
  rm -rf "$home/debs"
  echo "$package" >"$home/stamp"
fi
root=$home/root
busybox=$root/bin/busybox
[ -x "$busybox" ] || busybox=$root/usr/bin/busybox
kernel=$(ls "$root"/boot/vmlinuz-* | head -1)
version=${kernel##*/vmlinuz-}
modules=$(find "$root" -type d -path "*lib/modules/$version/kernel" | head -1)

# The test binaries by cargo's names, and truepeer in the place where the tests look for it. With --workspace, what
# `make test` has built is used again.
say "building"
built=$(cargo test --workspace --test attach --test packets --test splice --test links --bin truepeer --no-run --message-format=json 2>"$home/build.log") ||
  { tail -20 "$home/build.log"; exit 1; }
# binary_of TEST CRATE: two crates have a test called splice.
binary_of() { grep "crates/$2[/#]" <<<"$built" | grep -o '"executable":"[^"]*/'"$1"'-[^"]*"' | tail -1 | cut -d'"' -f4; }
truepeer=$target/debug/truepeer

tree=$home/tree
rm -rf "$tree"
mkdir -p "$tree"/{bin,sbin,proc,sys,dev,tmp,run,etc,modules}
put() { mkdir -p "$tree/$(dirname "$2")"; cp -L "$1" "$tree/$2"; }
# A program and its shared libraries.
put_program() {
  put "$1" "$2"
  strip "$tree/$2" 2>/dev/null || true
  ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do [ -e "$tree$library" ] || put "$library" "$library"; done
}
put "$busybox" bin/busybox
put_program "$(binary_of attach truepeer)" attach
put_program "$(binary_of packets truepeer)" packets
put_program "$(binary_of splice truepeer)" proxy-splice
put_program "$(binary_of splice bpf)" models
put_program "$(binary_of links splice)" links
put_program "$truepeer" "$truepeer"
ln -s busybox "$tree/bin/true"
echo root:x:0:0:root:/:/bin/sh >"$tree/etc/passwd"
echo root:x:0: >"$tree/etc/group"
for tool in "${tools[@]}"; do put_program "$(command -v "$tool")" "sbin/$tool"; done
number=10 # the order in which the modules need each other
for module in net/sched/sch_ingress net/sched/cls_bpf drivers/net/veth net/ipv4/inet_diag net/ipv4/tcp_diag \
              lib/libcrc32c net/ipv4/netfilter/nf_defrag_ipv4 net/ipv6/netfilter/nf_defrag_ipv6 \
              net/netfilter/nfnetlink net/netfilter/nf_conntrack net/netfilter/nf_nat net/netfilter/nf_tables \
              net/netfilter/nft_chain_nat net/netfilter/nft_nat net/netfilter/nft_redir \
              net/llc/llc net/802/stp net/802/garp net/802/mrp net/8021q/8021q; do
  file=$(ls "$modules/$module".ko* 2>/dev/null | head -1) || true
  [ -n "$file" ] || continue # built in
  copy=$tree/modules/$((number += 1)).ko
  case $file in
    *.xz) xz -dc "$file" >"$copy" ;;
    *) cp "$file" "$copy" ;;
  esac
done

cat >"$tree/init" <<END
#!/bin/busybox sh
export PATH=/sbin:/bin HOME=/ NO_COLOR=1
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs run /run
busybox mount -t bpf bpf /sys/fs/bpf
busybox mount -t cgroup2 none /sys/fs/cgroup
for module in /modules/*; do busybox insmod \$module; done
ip link set lo up
echo "Linux \$(busybox uname -r)"
failed=0
for test in ${tests[*]}; do /attach --color never --test-threads 1 \$test || failed=\$((failed + 1)); done
for test in ${packets[*]}; do /packets --color never --test-threads 1 \$test || failed=\$((failed + 1)); done
for test in ${proxy_splice[*]}; do /proxy-splice --color never --test-threads 1 \$test || failed=\$((failed + 1)); done
export MODEL_SEGMENTS=5000 HANDOVERS=4
for test in ${models[*]}; do /models --color never --test-threads 1 \$test || failed=\$((failed + 1)); done
for test in ${links[*]}; do /links --color never --test-threads 1 \$test || failed=\$((failed + 1)); done
echo "old-kernel: \$failed failed"
busybox reboot -f
END
chmod +x "$tree/init"
(cd "$tree" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$home/initramfs"

say "booting Linux $version"
qemu=$root/usr/bin/qemu-system-x86_64
start=$SECONDS
LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu/pulseaudio \
  timeout "${OLD_KERNEL_TIMEOUT:-1800}" "$qemu" -L "$root/usr/share/seabios" -L "$root/usr/share/qemu" -accel tcg -cpu max -m 2048 -smp 2 \
  -nodefaults -nographic -vga none -nic none -serial stdio -no-reboot -kernel "$kernel" -initrd "$home/initramfs" \
  -append "console=ttyS0 quiet panic=-1 no_timer_check init=/init" </dev/null 2>"$home/qemu.log" | tee "$home/console.log" || true
say "took $((SECONDS - start)) s"
# Count by the summaries: some tests print figures before their "ok".
passed=$(awk '/^test result: ok/ { passed += $4 } END { print passed + 0 }' "$home/console.log")
if grep -q '^old-kernel: 0 failed' "$home/console.log" && [ "$passed" -ge $((${#tests[@]} + ${#packets[@]} + ${#proxy_splice[@]} + ${#models[@]} + ${#links[@]})) ]; then
  say "$passed passed on Linux $version"
else
  tail -5 "$home/qemu.log"
  say "FAILED on Linux $version (console: ${home#"$PWD"/}/console.log)"
  exit 1
fi
