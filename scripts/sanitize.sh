#!/bin/bash
# Runs the relay's unit tests, which include its simulator, and those of its neighbours under sanitizers. Many minutes. Prints a line for each.
#
#     make sanitize
#     SANITIZE=thread make sanitize    # one of: address thread
#
# address: reads and writes outside of objects, or after their end, also in libc's calls. The simulator's sessions, whole schedules.
# thread: data races, in the tests that start threads: workers, mailboxes, supervision, wakes between event loops. The standard library is built
# with it, because it would otherwise report the library's own locks.
#
# Needs rustup and a nightly toolchain with rust-src.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export RUSTUP_TOOLCHAIN=${SANITIZE_TOOLCHAIN:-nightly} RUST_BACKTRACE=1
host=$(rustc -vV | sed -n 's/^host: //p')
read -ra sanitizers <<<"${SANITIZE:-address thread}"
logs=$target/sanitize-logs
mkdir -p "$logs"
status=0

# run NAME SANITIZER ARGUMENTS: builds in a directory of its own, since every crate has other flags.
run() {
  local name=$1 sanitizer=$2 log=$logs/$1.log start=$SECONDS
  RUSTFLAGS="-Zsanitizer=$sanitizer" nice cargo test --target "$host" --target-dir "$target/sanitize-$sanitizer" --no-fail-fast "${@:3}" \
    >"$log" 2>&1 || { status=1; grep -aE '^error|FAILED|ERROR: |WARNING: ThreadSanitizer|^SUMMARY' "$log" | sort | uniq -c | head -20; }
  awk -v name="$name" -v took=$((SECONDS - start)) '/^test result: / { passed += $4; failed += $6; out += $8 }
    END { printf "sanitize %s: %d passed, %d failed, %d ignored, %d s\n", name, passed, failed, out, took; exit passed == 0 }' "$log" || status=1
}

for sanitizer in "${sanitizers[@]}"; do
  case $sanitizer in
    address) run address address -p truepeer-relay -p truepeer-session -p truepeer-sys --lib ;;
    thread) run thread thread -Zbuild-std -p truepeer-relay -p truepeer-session --lib -- --skip sim:: ;;
    *) echo "sanitize: address or thread, not $sanitizer"; exit 1 ;;
  esac
done
exit "$status"
