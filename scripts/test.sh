#!/bin/bash
# All checks, the fastest to fail first. Each runs even if an earlier one failed. The output of each is kept in
# target/logs. TRUEPEER_TEST_ALL=1 adds the long tests. The last line has the totals.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
export CARGO_TERM_COLOR=never RUST_BACKTRACE=0
# If clang is available, a build without the kernel programs is a failure.
# The same for the library of `truepeer run`.
case "$(rustc -vV | sed -n 's/^host: //p')" in *-linux-gnu) export TRUEPEER_REQUIRE_LIBRARY=1 ;; esac
if command -v clang >/dev/null; then export TRUEPEER_REQUIRE_CLANG=1; fi
logs=$target/logs
mkdir -p "$logs"
rm -f "$logs"/*.beside "$logs"/*.status "$logs"/tests*.log
passed=0 failed=0 skipped=0
failures=() skips=()
begin=$SECONDS

# A failure: what to call it, its log, and the test's name if the log is that of many.
note_failure() { failures+=("$1"$'\t'"${2-}"$'\t'"${3-}"); failed=$((failed + 1)); }
# Skips are stored as "reason TAB name" and printed grouped by reason.
note_skip() { skips+=("${1#*: }"$'\t'"${1%%: *}"); skipped=$((skipped + 1)); } # "name: reason"

# A check that passes or fails: name, command. If it prints "SKIP ...: reason", it can't run here; its status is
# then 0 or 77.
check() {
  local name=$1 start=$SECONDS status
  shift
  echo "==> $name: $*"
  "$@" 2>&1 | tee "$logs/$name.log"
  status=${PIPESTATUS[0]}
  if grep -q '^SKIP ' "$logs/$name.log" && [[ $status = 0 || $status = 77 ]]; then
    note_skip "$(sed -n 's/^SKIP //p' "$logs/$name.log" | head -1)"
  elif [ "$status" = 0 ]; then passed=$((passed + 1))
  else note_failure "$name (target/logs/$name.log)" "$logs/$name.log"; fi
  echo "    $name took $((SECONDS - start)) s"
}

# A check that consists of many tests: their own counts are added.
check_tests() {
  local name=$1 start=$SECONDS status
  shift
  echo "==> $name: $*"
  "$@" 2>&1 | tee "$logs/$name.log"
  count_tests "$name" "${PIPESTATUS[0]}" "$start"
}

# count_tests NAME STATUS START: adds up the counts in a log of a command with this status, started at this second.
count_tests() {
  local name=$1 status=$2 log=$logs/$1.log before=$failed ours p f s
  ours=$(awk '/^test result: / { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1)
              if ($i ~ /^failed/) f += $(i-1); if ($i ~ /^ignored/) s += $(i-1) } } END { print p + 0, f + 0, s + 0 }' "$log")
  read -r p f s <<<"$ours"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  while read -r line; do failures+=("$name: $line"$'\t'"$log"$'\t'"$line"); done < <(sed -n 's/^test \(.*[^ ]\) *\.\.\. FAILED.*/\1/p' "$log")
  while IFS=$'\t' read -r reason test; do skips+=("$reason"$'\t'"$name: $test"); done < <(
    sed -n -e 's/^test \(.*[^ ]\) *\.\.\. ignored *(\(.*\))$/\2\t\1/p' -e 's/^test \(.*[^ ]\) *\.\.\. ignored, *\(.*\)$/\2\t\1/p' "$log")
  if [ "$status" != 0 ] && [ "$failed" = "$before" ]; then note_failure "$name (did not build, or was cut short)" "$log"; fi
  if [ $((p + f + s)) = 0 ] && [ "$status" = 0 ]; then note_failure "$name (no test ran)" "$log"; fi
  echo "    $name took $((SECONDS - $3)) s"
}

# Some CI systems keep the last 2.5 kB of the output only: the reasons of the first failures come last, and share that room.
print_failures() {
  local failure name log test explained=5 room=1700
  [ ${#failures[@]} -gt 0 ] || return 0
  [ ${#failures[@]} -ge $explained ] || explained=${#failures[@]}
  for failure in "${failures[@]:explained}"; do echo "FAILED ${failure%%$'\t'*}"; done
  for failure in "${failures[@]:0:explained}"; do
    IFS=$'\t' read -r name log test <<<"$failure"
    echo "FAILED $name"
    if [ -s "$log" ]; then scripts/reason.sh "$log" "$test" $((room / explained)); fi
  done
}

# The tests of the workspace. Most wait, for repeated segments, time-outs or programs, so three groups run side by side.
declare -A group_of=()
for name in attach packets model udp_model splice simulated; do group_of[$name]=packets; done
for name in judged links rounds routes run run_notify udp; do group_of[$name]=programs; done
check_workspace_tests() {
  local start=$SECONDS name besides status
  local -A tests=() process=()
  check tests-build cargo test --workspace --no-run
  wait "$servers" || note_failure servers "$logs/servers.log"
  cat "$logs/servers.log"
  [ "$failed" = 0 ] || [ -x "$target/debug/truepeer" ] || return 0 # counted; nothing to run
  for name in $(sed -n 's/^ *Executable tests\/\([^/.]*\)[/.].*/\1/p' "$logs/tests-build.log" | sort -u); do
    tests[${group_of[$name]-others}]+=" --test $name"
  done
  for name in packets programs; do
    echo "==> tests-$name, beside tests: cargo test --workspace --no-fail-fast${tests[$name]}"
    cargo test --workspace --no-fail-fast ${tests[$name]} >"$logs/tests-$name.log" 2>&1 &
    process[$name]=$!
  done
  run_beside "${process[@]}" &
  besides=$!
  check_tests tests cargo test --workspace --no-fail-fast --lib --bins ${tests[others]}
  check_tests tests-docs cargo test --workspace --doc
  for name in packets programs; do
    wait "${process[$name]}"
    status=$?
    cat "$logs/tests-$name.log"
    count_tests "tests-$name" "$status" "$start"
  done
  wait "$besides"
}

# What needs the processor starts once the tests run, which mostly wait. `beside NAME` prints its output and has its status.
run_beside() { # the processes of the tests beside
  local name
  for name in tests tests-packets tests-programs; do
    until grep -qs '^ *Running ' "$logs/$name.log" || ! kill -0 "$@" 2>/dev/null; do sleep 1; done
  done
  for name in clippy doc doc_private agent_clippy agent_build; do
    "$name" >"$logs/$name.beside" 2>&1
    echo "$?" >"$logs/$name.status"
  done
}
beside() {
  [ -e "$logs/$1.status" ] || { "$1"; return; } # the tests did not build
  cat "$logs/$1.beside"
  return "$(cat "$logs/$1.status")"
}
agent=(--manifest-path crates/agent/Cargo.toml)
clippy() { cargo clippy --workspace --all-targets -q -- -D warnings; }
doc() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps -q; }
# Of a program, rustdoc reads without this only what it exports: `main`. Of all crates, as above: of a few, their
# dependencies would have other features and be built again.
doc_private() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items -q; }
agent_clippy() { cargo clippy "${agent[@]}" --target-dir "$target" --all-targets -q -- -D warnings; }
agent_build() { cargo test "${agent[@]}" --target-dir "$target" --no-run -q; }

# Runs some of the tests again as a plain user: namespaces must be available without root, too.
check_as_plain_user() {
  [ "$(id -u)" = 0 ] || return 0 # all tests have just been run as a plain user
  local user=(setpriv --reuid=65534 --regid=65534 --clear-groups) name filter binary
  while read -r name filter; do
    binary=$(sed -n "s/^ *Running tests\/$name\.rs (\(.*\))\$/\1/p" "$logs/tests.log" | head -1)
    [ -n "$binary" ] || continue # it did not build, which has been counted
    binary=$(realpath "$binary")
    if ! "${user[@]}" test -x "$binary"; then
      note_skip "plain user, $name: $binary is below a directory that only root can enter"
    elif ! "${user[@]}" unshare --user true 2>/dev/null; then
      note_skip "plain user, $name: plain users can't create namespaces on this machine"
    else
      check_tests "plain-user-$name" "${user[@]}" "$binary" $filter </dev/null
    fi
  done <<<$'bed\nservers\nmatrix names_the_client'
}

# With all targets, as the tests were built: with fewer, some crates have fewer features and would be compiled
# again.
build_programs() { cargo build -q --workspace --all-targets; }

# The tests have built both programs, unless the build failed.
demo() {
  [ -x "$target/debug/truepeer" ] && [ -x "$target/debug/demo" ] || build_programs || return 1
  "$target/debug/demo" "$target/debug/truepeer"
}

demo_https() {
  [ -x "$target/debug/truepeer" ] && [ -x "$target/debug/demo-https" ] || build_programs || return 1
  "$target/debug/demo-https" "$target/debug/truepeer" --duration 2s
}

bench_smoke() {
  build_programs && "$target/debug/bench" --smoke --truepeer "$target/debug/truepeer"
}

# The tarball's binary is static: musl has other types than glibc where truepeer calls libc itself.
musl() {
  local musl
  musl=$(uname -m)-unknown-linux-musl
  [ -d "$(rustc --print target-libdir --target "$musl")" ] || { echo "SKIP musl: rustup target add $musl is needed"; return 0; }
  cargo check -q -p truepeer-sys --target "$musl"
}

package_lint() { { [ -x "$target/debug/truepeer" ] || build_programs; } && scripts/package-lint.sh; }
packages() { scripts/package.sh && scripts/package-check.sh; }

# Debian's awk is mawk, Fedora's gawk, Alpine's busybox: runs a command once with each that is installed.
with_each_awk() {
  local dir awk path status=0
  dir=$(mktemp -d)
  for awk in mawk gawk busybox; do
    path=$(command -v "$awk") || { echo "not with $awk: it is not installed"; continue; }
    ln -sf "$path" "$dir/awk"
    echo "with $awk:"
    PATH=$dir:$PATH "$@" || status=1
  done
  [ -e "$dir/awk" ] || { echo "none of mawk, gawk, busybox is installed"; status=1; }
  rm -r "$dir"
  return $status
}

# In GiB: what the first run on a clone needs for target/.
room=14
[ -z "${TRUEPEER_TEST_ALL-}" ] || room=24
free=$(($(df --output=avail "$target" | tail -1) >> 20))
echo "==> $(. /etc/os-release; echo "$PRETTY_NAME"), Linux $(uname -r), $(nproc) cores, $(cargo --version), user $(id -un), $free GiB free"
[ -e "$target/debug/truepeer" ] || [ "$free" -ge "$room" ] || echo "warning: the first run on a clone needs $room GiB for target/; make room if it fails"
{ scripts/servers.sh && scripts/newer.sh; } >"$logs/servers.log" 2>&1 & # it downloads, and what follows compiles
servers=$!
check format cargo fmt --all --check
check reliability scripts/reliability.sh
check graph scripts/graph.py
check reason with_each_awk scripts/reason.sh --check
check dependencies with_each_awk scripts/dependencies.sh
check_workspace_tests
check clippy beside clippy
check doc beside doc
check doc-private beside doc_private
check agent-format cargo fmt "${agent[@]}" --check
check agent-clippy beside agent_clippy
check agent-build beside agent_build
check_tests agent cargo test "${agent[@]}" --target-dir "$target" --no-fail-fast
check test-names scripts/test-names.sh
check_as_plain_user
if [ -n "${TRUEPEER_TEST_ALL:-}" ]; then layouts="v2 hybrid" pods=110; else layouts=v2 pods=0; fi
if [ -x "$target/debug/truepeer" ]; then check_tests engines scripts/engines.sh "$layouts"; fi
if [ -x "$target/debug/truepeer-agent" ]; then check_tests agent-engines scripts/agent-engines.sh; fi
if [ -x "$target/debug/truepeer-agent" ]; then check_tests kube scripts/kube.sh "$layouts" $pods; fi
if [ -n "${TRUEPEER_TEST_ALL:-}" ]; then
  before=$failed
  check static scripts/static.sh target/static
  # It needs the programs of static.sh.
  if [ "$failed" = "$before" ]; then check_tests deliver scripts/deliver.sh; else note_skip "deliver: static failed"; fi
  check_tests kube-pages scripts/kube-pages.sh
  check_tests kube-nodes scripts/kube-nodes.sh
else note_skip "deliver, kube-pages, kube-nodes: long: make test-all runs them"; fi
check demo demo
check demo-https demo_https
check bench-smoke bench_smoke
check musl musl
check package-lint package_lint
if [ "${TRUEPEER_TEST_ALL:-}" = 1 ]; then check packages packages; fi
if [ -n "${TRUEPEER_TEST_ALL:-}" ]; then check fuzz-smoke fuzz/smoke
else
  # The others need TLS, HTTP/2 and the whole program, which take minutes to build. The tests of https and truepeer give the same code made-up input as well.
  check fuzz-smoke env FUZZ_HTTPS=0 fuzz/smoke
  note_skip "fuzz-smoke of five targets (FUZZ_HTTPS): long: make test-all runs them"
fi
if [ -n "${TRUEPEER_TEST_ALL:-}" ]; then check systemd scripts/systemd-check.sh
else note_skip "systemd: long: make test-all runs it"; fi
if [ -n "${TRUEPEER_TEST_ALL:-}" ]; then check units scripts/units-check.sh
else note_skip "units: long: make test-all runs it"; fi
if [ -n "${TRUEPEER_TEST_ALL:-}" ]; then
  check kernels scripts/kernels.sh --sample
  check_tests apparmor scripts/apparmor.sh
else note_skip "kernels, apparmor: long: make test-all runs them"; fi
# Of the pages by situation, a fast one. The others install more.
if [ -n "${TRUEPEER_TEST_ALL:-}" ]; then
  check_tests situations scripts/situations.sh
  check_tests situations-next env TRUEPEER_SITUATIONS_RELEASE=trixie scripts/situations.sh
else check_tests situations scripts/situations.sh --if-ready game-server-haproxy; fi
check deny scripts/cargo-deny.sh --log-level error check --hide-inclusion-graph bans licenses sources
check agent-deny scripts/cargo-deny.sh "${agent[@]}" --config crates/agent/deny.toml --log-level error check --hide-inclusion-graph bans licenses sources
check advisories scripts/advisories.sh

echo
# Hundreds of skips have a few reasons: print one line for each reason, with the first names.
if [ ${#skips[@]} -gt 0 ]; then
  printf '%s\n' "${skips[@]}" | awk -F '\t' '{
      reason = $1; name = $2
      if (!(reason in count)) order[++reasons] = reason
      if (++count[reason] <= 3) names[reason] = names[reason] (count[reason] > 1 ? ", " : "") name
    } END { for (i = 1; i <= reasons; i++) { reason = order[i]; more = count[reason] - 3
      others = (more > 0) ? " and " more " more" : ""
      printf "skipped %d: %s (%s%s)\n", count[reason], reason, names[reason], others } }'
fi
print_failures
echo "all checks took $((SECONDS - begin)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
