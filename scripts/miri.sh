#!/bin/bash
# Runs the tests of pure code under Miri, which finds undefined behaviour: in truepeer's own code, and in the unsafe code of crates that these
# tests reach (memchr, httparse, prefix-trie). Many minutes. Prints a line for each crate.
#
#     make miri
#     MIRI_CRATES=policy make miri     # one crate (cargo-miri uses the name MIRI itself)
#     PROPTEST_CASES=64 make miri      # more random cases than 4
#
# Needs rustup and a nightly toolchain. Tests that call what Miri lacks (epoll, netlink, most socket options), or that need many minutes
# there, are left out by name (below).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export RUSTUP_TOOLCHAIN=${MIRI_TOOLCHAIN:-nightly}
# proptest reads the clock and looks for files of earlier failures.
export MIRIFLAGS=${MIRIFLAGS--Zmiri-disable-isolation} PROPTEST_CASES=${PROPTEST_CASES:-4}
read -ra crates <<<"${MIRI_CRATES:-proto policy http session handover sys}"

cargo miri --version >/dev/null 2>&1 || rustup component add miri rust-src || {
  echo "miri: rustup toolchain install nightly --component miri,rust-src is needed"; exit 1; }

# left_out CRATE: parts of the names of tests that are not run. Miri stops the whole run at a call that it lacks.
left_out() {
  case $1 in
    session) # socket options; and tests that count to 100,000
      echo connect_as:: an_address_is_shared memory_and_log_are_bounded other_addresses_are_counted memory_is_bounded_for_any a_flood_takes_no_lock ;;
    handover) # memfd, sockets; long counts
      echo names:: tests::a_header tests::first_bytes tests::the_end tests::a_listener tests::a_late tests::a_silent tests::an_optional a_crowd_is_heard a_full_table ;;
    sys) echo process:: host:: the_kernel_ignores the_kernel_tells what_its_owner what_is_cut_off ;; # netlink, fork(2), seccomp, datagrams
  esac
}

status=0
logs=$target/miri-logs
mkdir -p "$logs"
for crate in "${crates[@]}"; do
  start=$SECONDS log=$logs/$crate.log
  # sys: its other tests are about programs that it starts.
  kinds=(--lib --tests) skips=()
  for name in $(left_out "$crate"); do skips+=(--skip "$name"); done
  [ "$crate" != sys ] || kinds=(--lib)
  nice cargo miri test --no-fail-fast -p "truepeer-$crate" "${kinds[@]}" -- "${skips[@]}" >"$log" 2>&1 || {
    status=1
    grep -E 'error:|FAILED|panicked' "$log" | head -20 || tail -20 "$log"
  }
  awk -v crate="$crate" -v took=$((SECONDS - start)) '/^test result: / { passed += $4; failed += $6; out += $12 }
    END { printf "miri %s: %d passed, %d failed, %d left out, %d s\n", crate, passed, failed, out, took; exit passed == 0 }' "$log" || status=1
done
exit "$status"
