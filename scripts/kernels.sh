#!/bin/bash
# Runs tests on Debian's kernels under qemu, in machines with only truepeer and these tests.
#
#   scripts/kernels.sh [tests] [cards] [RELEASE...]   the releases whose kernels to take: bookworm (6.1), trixie (6.12), sid (the newest)
#   scripts/kernels.sh --write                        both on all three, and docs/internals/kernels.md; hours
#   scripts/kernels.sh --sample                       one test of each kind on each kernel, and one card; minutes
#
# `tests`: attach, hand-made packets, and sessions that leave user space, over veth pairs. `cards`: each way
# between three hosts that network cards of several drivers join; each pair of cards is a wire. Needs no root.
# KERNELS_CARDS and KERNELS_CELLS choose some.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
say() { echo "kernels: $*"; }
skip() { echo "SKIP kernels: $*"; exit 0; }
. scripts/guest.sh

attach=(a_right_guess_alters_no_packet flows_end_with_their_sockets a_name_belongs_to_its_socket
        detach_waits_for_open_connections udp::a_backend_on_the_senders_host_sees_the_client
        udp::answers_in_spp_carry_the_header_back udp::ports_are_mapped_both_ways udp::a_connected_socket_answers
        udp::aggregated_datagrams_are_split a_vlan_is_a_link_like_others
        leftovers::a_namespace_without_process_is_alive leftovers::a_namespace_whose_device_is_gone_is_alive
        an_ended_flow_does_not_translate_other_connections cut::)
# again:: is two tests before Linux 6.9. Datagrams, links that lose packets, and floods take too long under
# emulation.
packets=(damage:: handshake:: paths:: unjudged:: holds:: again::)
# A session leaves there, over a VLAN, too, and over a device that comes later.
proxy_splice=(a_session_leaves_user_space_and_its_bytes_are_counted a_session_over_a_vlan_leaves
              sessions_leave_over_a_device_that_comes_later)
# Only a few short tests of each kind: every packet costs fifty times as much here.
models=(splice_in_does_what_its_model_says errors_go a_segment_that_is_too_long a_window_probe a_damaged_segment_teaches what_follows_a_damaged)
links=(questions_and_answers_over_good_links questions_and_answers_over_bad_links_by_ipv4 bulk_both_ways_over_good_links_by_ipv6
       a_reset_in_the_tail learns_of_a_path a_third_host)
releases=() cards=(virtio-net virtio-net-queues virtio-net-plain e1000e igb igb-no-uso vmxnet3) cells=(_over_)
parts=()
for word; do
  case $word in
    tests | cards) parts+=("$word") ;;
    --write | --sample) parts=(tests cards) ;;
    *) releases+=("$word") ;;
  esac
done
[ ${#releases[@]} -gt 0 ] || releases=(bookworm trixie sid)
[ ${#parts[@]} -gt 0 ] || parts=(tests cards)
if [ "${1-}" = --sample ]; then
  attach=("${attach[0]}") packets=(handshake::) links=()
  proxy_splice=("${proxy_splice[0]}") models=("${models[0]}") cards=(e1000e) cells=(attach_over_a_vlan_ipv4 auto_over_ipv6)
fi
[ -z "${KERNELS_CARDS-}" ] || read -ra cards <<<"$KERNELS_CARDS"
[ -z "${KERNELS_CELLS-}" ] || read -ra cells <<<"$KERNELS_CELLS"

[ "$(uname -m)" = x86_64 ] || skip "this script supports x86_64 only"
tools=(ip unshare setpriv ethtool tc ss) # needed by tests
for tool in "${tools[@]}" gzip; do command -v "$tool" >/dev/null || skip "needs $tool"; done
! command -v nft >/dev/null || tools+=(nft) # without it the tests of redirected ports are skipped
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "needs apt-get"
exec 9>"$guests/lock"
flock 9
guest_qemu || skip "apt can't provide qemu of $qemu_release"
for release in "${releases[@]}"; do guest_kernel "$release" || skip "apt can't provide the kernel of $release"; done

# The test binaries by cargo's names, and truepeer in the place where the tests look for it. With --workspace,
# what `make test` has built is used again.
say "building"
built=$(cargo test --workspace --test attach --test packets --test splice --test links --test cells --bin truepeer --no-run \
  --message-format=json 2>"$guests/build.log") || { tail -20 "$guests/build.log"; exit 1; }
# binary_of TEST CRATE: two crates have a test called splice.
binary_of() { grep "crates/$2[/#]" <<<"$built" | grep -o '"executable":"[^"]*/'"$1"'-[^"]*"' | tail -1 | cut -d'"' -f4; }
guest_tree "${tools[@]}"
put_program "$target/debug/truepeer" "$target/debug/truepeer"
while read -r name test crate; do put_program "$(binary_of "$test" "$crate")" "$name"; done <<END
attach attach truepeer
packets packets truepeer
proxy-splice splice truepeer
cells cells truepeer
models splice bpf
links links splice
END
guest_pack "$tree" "$guests/tree.gz"

failures=0
# The table shows what the logs show.
[ "${1-}" != --write ] || rm -rf "$guests/logs"
mkdir -p "$guests/logs"
sign_log() { echo "kernels: Linux $version ($package), $(date +%F), $accel" >>"$1"; }
# run_in_guest NAME LEAST [OPTION OF QEMU...]: runs the commands of standard input, of which each counts its
# failures; at least so many tests must have passed or have been skipped with a reason.
run_in_guest() {
  local name=$1 least=$2 start=$SECONDS log=$guests/logs/$1.log seen
  shift 2
  { echo "failed=0"; cat; echo 'echo "kernels: $failed failed"'; } >"$guests/logs/$name.work"
  say "booting Linux $version: $name"
  # qemu's emulation of two processors may fail an assertion while the firmware or the kernel lays out the
  # cards (iotlb_to_section).
  for _ in 1 2 3; do
    guest_boot "$guests/logs/$name.work" "$log" "${KERNELS_TIMEOUT:-3600}" "$@"
    if grep -q '^Linux ' "$log" || ! grep -q 'Assertion' "$guests/qemu.log"; then break; fi
    say "qemu has failed before Linux ran, once more: $(tail -1 "$guests/qemu.log")"
  done
  sign_log "$log"
  # Count by the summaries: some tests print figures before their "ok".
  seen=$(awk '/^test result: / { done += $4 + $8 } END { print done + 0 }' "$log")
  if grep -q '^kernels: 0 failed' "$log" && [ "$seen" -ge "$least" ]; then
    say "$name: $seen done in $((SECONDS - start)) s"
  else
    tail -5 "$guests/qemu.log"
    say "FAILED $name after $((SECONDS - start)) s (console: ${log#"$PWD"/})"
    return 1
  fi
}
# each BINARY FILTER...: commands.
each() {
  local binary=$1
  shift
  [ $# -eq 0 ] || echo "for test in $*; do /$binary --color never --test-threads 1 \$test || failed=\$((failed + 1)); done"
}

tests_of() { # RELEASE
  local all=("${attach[@]}" "${packets[@]}" "${proxy_splice[@]}" "${models[@]}" "${links[@]}")
  { each attach "${attach[@]}"; each packets "${packets[@]}"; each proxy-splice "${proxy_splice[@]}"
    echo "export MODEL_SEGMENTS=5000 HANDOVERS=4"; each models "${models[@]}"; each links "${links[@]}"
  } | run_in_guest "tests-$1" ${#all[@]} -nic none || failures=$((failures + 1))
}

# Commands that change all cards.
set_each() { echo "for card in eth0 eth1 eth2 eth3; do ethtool $1 \$card ${*:2}; done"; }

# Four cards, the first joined to the second and the third to the fourth: by hubs of qemu, or by devices of
# the host (tap), which alone can pass on what virtio-net's offloads leave to be done, and have several
# queues.
cards_of() { # RELEASE CARD
  local release=$1 card=$2 model=$2 number options=() addresses="" queues="" more="" reason=""
  inside=()
  case $card in
    virtio-net) guest_taps || reason="this user can't make tap devices" ;;
    virtio-net-queues)
      guest_taps multi_queue || reason="this user can't make tap devices"
      queues=,queues=4 more=,mq=on,vectors=10 ;;
  esac
  if [ -n "$reason" ]; then
    say "not tried: $card on Linux $version: $reason" | tee "$guests/logs/cards-$release-$card.log"
    sign_log "$guests/logs/cards-$release-$card.log"
    return
  fi
  [[ $card != virtio-net* ]] || model=virtio-net-pci
  model=${model%-no-uso}
  for number in 0 1 2 3; do
    if [ ${#inside[@]} -gt 0 ]; then options+=(-netdev "tap,id=n$number,ifname=t$number,script=no,downscript=no,vhost=off$queues")
    else options+=(-netdev "hubport,id=n$number,hubid=$((number / 2))"); fi
    # An igb has virtual functions, which take two more places each.
    options+=(-device "$model,netdev=n$number,mac=52:54:00:00:00:0$number,addr=$(printf %x $((2 * number + 4))),romfile=$more")
    addresses+=" 52:54:00:00:00:0$number"
  done
  { echo 'busybox touch /cards; busybox mount --bind /proc/self/ns/net /cards'
    echo "export TRUEPEER_TESTBED_CARDS='/cards$addresses' TRUEPEER_TEST_ALL=1"
    case $card in
      virtio-net-queues) set_each -L combined 4 ;;
      virtio-net-plain) set_each -K gro off gso off ;;
      igb-no-uso) set_each -K tx-udp-segmentation off ;; # what qemu's igb should cut gets lost
    esac
    echo 'ethtool -i eth0 | busybox sed -n "s/^driver: /card: driver /p"'
    echo 'ethtool -k eth0 | busybox sed -n "s/^\([a-z-]*\): /card: \1 /p"'
    echo 'ethtool -l eth0 2>&1 | busybox sed -n "s/^Combined:/card: queues/p" | busybox tail -1'
    each cells "${cells[@]}"
    # The cards are back. Packets that one of them has cut into segments, as far as the driver counts them.
    echo 'busybox sleep 3; for card in /sys/class/net/*; do ethtool -S ${card##*/} 2>/dev/null; done |
            busybox awk "/tx_tcp_seg_good/ { sum += \$NF; n++ } END { if (n) print \"card: cut \" sum }"'
  } | run_in_guest "cards-$release-$card" ${#cells[@]} "${options[@]}" || failures=$((failures + 1))
  inside=()
}

guest_accel
for release in "${releases[@]}"; do
  guest_kernel "$release"
  for part in "${parts[@]}"; do
    if [ "$part" = tests ]; then tests_of "$release"
    else for card in "${cards[@]}"; do cards_of "$release" "$card"; done; fi
  done
done
python3 scripts/kernels.py "$guests/logs" >"$guests/kernels.md"
[ "${1-}" != --write ] || cp "$guests/kernels.md" docs/internals/kernels.md
say "$failures machines failed (table: ${guests#"$PWD"/}/kernels.md)"
[ "$failures" = 0 ]
